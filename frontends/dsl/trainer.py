"""Training as one compiled call: forward, backward and optimiser in one program, parameters updated in place.

The trainer owns the memory of parameters, buffers and optimiser slots; the model's attributes are views of
it, so they are always what the last step left. A checkpoint holds all of it, so that resuming is exact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy before arrays of it are read
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from ingot.compiler.errors import Code, IngotTypeError, IngotValueError
from ingot.compiler.garbage import no_collection
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.types import TensorType, i64
from ingot.compiler.options import Options
from ingot.compiler.pipeline import compile_graph
from ingot.frontends.dsl.api import CompiledFunction
from ingot.frontends.dsl.functions import bind_module, buffer_updates, output_tensor, value_and_grad
from ingot.frontends.dsl.module import Buffer, Module, write_slot
from ingot.frontends.dsl.optim import Optimizer
from ingot.frontends.dsl.progress import progress_bar
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace, Traced, argument_names, as_type, check_dims, flatten, running_user_code
from ingot.runtime.storage import aligned_copies, replacing

OWN = "optimizer."  # begins the names of the optimiser's states
COUNT = f"{OWN}count"


class Trainer:
    """`loss(model, *batch)` returns a scalar, or (scalar, metrics) with a dict of tensors to report."""

    def __init__(
        self,
        model: Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        *types: Any,
        options: Options | None = None,
        **choices: Any,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.options = chosen = (options or Options.from_environment()).with_(**choices)
        checked = [as_type(t, n) for n, t in enumerate(types)]
        check_dims(checked)
        with no_collection():  # once around all of it: a collection between two parts would look at what the first made
            self.states = self._initial_states()
            traced = self._trace(checked)
            self.graph: Graph = traced.graph
            compiled = compile_graph(self.graph, chosen)
            self.executable = CompiledFunction(compiled, traced, chosen.threads, self.states)

    # --- building --------------------------------------------------------------------------------------

    def _initial_states(self) -> dict[str, np.ndarray]:
        """Aligned memory for everything that is kept between steps; the model then uses that memory too."""
        arrays = self.model.named_arrays()
        wanted = {name: np.asarray(array) for name, array in arrays.items()}
        for name, array in self.model.named_parameters().items():
            wide = array.astype(np.float32) if array.dtype.itemsize < 4 else array
            for slot, value in self.optimizer.initial(wide).items():
                wanted[f"{OWN}{name}.{slot}"] = np.asarray(value)
        wanted[COUNT] = np.zeros((), np.int64)
        states = dict(zip(wanted, aligned_copies(list(wanted.values())), strict=True))
        moved = {id(array): states[name] for name, array in arrays.items()}
        for _, holder, key in list(self.model.slots()):
            old = vars(holder)[key] if isinstance(holder, Module) else holder[key]
            new = moved[id(old)]
            write_slot(holder, key, new.view(Buffer) if isinstance(old, Buffer) else new)
        return states

    def _trace(self, types: list[TensorType]) -> Traced:
        names = argument_names(self.loss, len(types) + 1)[1:]
        builder = Trace()
        batch = [Tensor(builder, builder.input(n, t)) for n, t in zip(names, types, strict=True)]
        training = self.model.with_arrays(lambda _, array: array).train()
        copied, tensors = bind_module(training, builder, "state", set(names))
        labels = {name: t.value.op.name for name, t in tensors.items()}  # type: ignore[attr-defined]
        parameters = {name: tensors[name] for name in training.named_parameters()}
        slots: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
        for name in self.states:
            parameter, _, slot = name.removeprefix(OWN).rpartition(".")
            if name.startswith(OWN) and parameter in parameters:
                slots[parameter][slot] = self._state_input(builder, name)
        count = self._state_input(builder, COUNT)
        value, metrics, gradients = self._gradients(training, copied, parameters, batch)
        new_parameters, new_slots = self.optimizer.apply(parameters, gradients, slots, count)
        updates: dict[str, Tensor] = {labels[n]: t for n, t in new_parameters.items()}
        updates |= {f"{OWN}{n}.{slot}": t for n, kept in new_slots.items() for slot, t in kept.items()}
        updates[COUNT] = count + 1
        updates |= {labels[n]: t for n, t in self._buffers.items()}
        self.states = {labels.get(n, n): a for n, a in self.states.items()}
        return self._graph(builder, value, metrics, updates)

    def _state_input(self, builder: Trace, name: str) -> Tensor:
        type_ = i64[()] if name == COUNT else as_type(self.states[name], 0)
        return Tensor(builder, builder.input(name, type_, "state"))

    def _gradients(
        self, training: Module, copied: Module, parameters: Mapping[str, Tensor], batch: list[Tensor]
    ) -> tuple[Tensor, dict[str, Any], dict[str, Tensor]]:
        """The loss, its metrics, and its gradient for each parameter; notes what buffers were assigned."""
        names = list(parameters)
        arrays = training.named_arrays()
        final: dict[str, Tensor] = {}

        def closed(*values: Tensor) -> Any:
            given = dict(zip(names, values, strict=True))
            others = _tensors_by_name(copied, training)
            model = training.with_arrays(lambda name, _: given.get(name, others[name]))
            with running_user_code():
                result = self.loss(model, *batch)
            inside = {name: given.get(name, others[name]) for name in arrays}
            final.update(buffer_updates(model, training, inside))
            return result if isinstance(result, tuple) else (result, {})

        if not names:
            raise IngotTypeError(Code.OP_ARGUMENTS, f"{type(self.model).__name__} has no parameters to train")
        differentiated = value_and_grad(closed, tuple(range(len(names))), has_aux=True)
        (value, metrics), found = differentiated(*parameters.values())
        self._buffers = final
        return value, metrics, dict(zip(names, found, strict=True))

    def _graph(
        self, builder: Trace, value: Tensor, metrics: Mapping[str, Any], updates: Mapping[str, Tensor]
    ) -> Traced:
        leaves, _ = flatten(metrics)
        outputs = [value.value, *(output_tensor(leaf, builder) for _, leaf in leaves)]
        names = ["loss", *(f"metrics.{name}" for name, _ in leaves)]
        numbers = {}
        for name, tensor in updates.items():
            numbers[name] = len(outputs)
            outputs.append(tensor.value)
            names.append(f"next.{name}")
        self.metric_names = [name for name, _ in leaves]
        title = f"train_{type(self.model).__name__}"
        graph = Graph(title, builder.inputs, tuple(outputs), tuple(names), builder.constants, numbers)
        return Traced(graph, 0 if not leaves else tuple(range(len(leaves) + 1)))

    # --- running ---------------------------------------------------------------------------------------

    def step(self, *batch: Any) -> Any:
        """One update; returns the loss (and a dict of metrics, when the loss function reports them)."""
        result = self.executable(*batch)
        if not self.metric_names:
            return float(result)
        return float(result[0]), dict(zip(self.metric_names, result[1:], strict=True))

    @property
    def count(self) -> int:
        """Updates done so far."""
        return int(self.states[COUNT])

    @property
    def peak_bytes(self) -> Any:
        return self.executable.peak_bytes

    def explain(self) -> Any:
        return self.executable.explain()

    def fit(self, batches: Iterable[tuple[Any, ...]], total: int | None = None, title: str = "training") -> list[float]:
        """A step for each batch, with a progress bar; returns the losses."""
        losses: list[float] = []
        with progress_bar(title, total if total is not None else _length(batches)) as advance:
            for batch in batches:
                result = self.step(*batch)
                losses.append(result if isinstance(result, float) else result[0])
                advance(f"loss {losses[-1]:.4f}")
        return losses

    # --- checkpoints -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Parameters, buffers and optimiser state as one safetensors file, written atomically."""
        # not np.ascontiguousarray, which gives a scalar an axis
        arrays = {name: np.asarray(array, order="C") for name, array in self.states.items()}
        data = to_safetensors(arrays, {"format": "ingot.checkpoint.1", "model": type(self.model).__name__})
        with replacing(Path(path)) as file:
            file.write(data)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint. Everything is checked before anything is changed."""
        try:
            with safe_open(os.fspath(path), framework="numpy") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise IngotValueError(Code.BAD_CHECKPOINT, f"{os.fspath(path)} cannot be read: {error}") from None
        missing, unknown = sorted(self.states.keys() - found.keys()), sorted(found.keys() - self.states.keys())
        if missing or unknown:
            raise IngotValueError(Code.BAD_CHECKPOINT, f"names do not fit: missing {missing}, unknown {unknown}")
        for name, array in self.states.items():
            given = found[name]
            if given.shape != array.shape or given.dtype != array.dtype:
                raise IngotValueError(
                    Code.BAD_CHECKPOINT,
                    f"{name} is {given.dtype}{list(given.shape)}, the trainer has {array.dtype}{list(array.shape)}",
                )
        for name, array in self.states.items():
            array[...] = found[name]


def _length(batches: Iterable[Any]) -> int | None:
    return len(batches) if hasattr(batches, "__len__") else None  # type: ignore[arg-type]


def _tensors_by_name(copied: Module, module: Module) -> dict[str, Tensor]:
    """The tensors of a traced copy, under the names that the module's arrays have."""
    found: dict[str, Tensor] = {}
    for name in module.named_arrays():
        item: Any = copied
        for key in name.split("."):
            item = (
                vars(item)[key]
                if isinstance(item, Module)
                else item[int(key) if isinstance(item, list | tuple) else key]
            )
        found[name] = item
    return found
