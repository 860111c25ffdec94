"""Modules: Python objects whose NumPy arrays are parameters.

A float array attribute is a parameter; a `Buffer` (an array that is not trained, such as a running mean) is
state that `forward` may replace by assigning to it; other modules, and lists, tuples and dicts of them, are
children. Tracing never touches the module itself: it runs a copy whose arrays are tensors, so there is no
hidden global state, and what the copy's buffers were assigned are the updates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir.types import bf16, f16, f32, f64, type_of


class Buffer(np.ndarray):
    """An array that belongs to a module's state but is not a parameter."""

    def __new__(cls, array: object) -> Buffer:
        return np.array(array).view(cls)


class Module:
    """`buffer_names`, of a traced copy, are the attributes that hold tensors of buffers. Kept outside of the
    attributes, which are the user's."""

    __slots__ = ("__dict__", "__weakref__", "buffer_names")

    training: bool = True
    buffer_names: frozenset[str]

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        made = super().__new__(cls)
        made.buffer_names = frozenset()
        return made

    def forward(self, *args: Any, **keywords: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if args and all(isinstance(a, np.ndarray) for a in args) and self.named_arrays():
            # arrays in and arrays as parameters: nothing is being traced, and nothing here computes
            types = ", ".join(f"ingot.{_type_name(a)}" for a in args)
            raise IngotTypeError(
                Code.NO_TENSOR_ARGUMENT,
                f"{type(self).__name__} is called on arrays; a model is compiled before it runs",
                hint=f"exe = ingot.compile(model, {types}), then exe(...)",
            )
        return self.forward(*args, **keywords)

    def named_arrays(self) -> dict[str, np.ndarray]:
        """Parameters and buffers by dotted name; an array that is shared has one name, its first."""
        found: dict[str, np.ndarray] = {}
        seen: set[int] = set()
        for name, holder, key in self.slots():
            array = _read(holder, key)
            if id(array) not in seen:
                seen.add(id(array))
                found[name] = array
        return found

    def named_parameters(self) -> dict[str, np.ndarray]:
        return {n: a for n, a in self.named_arrays().items() if not isinstance(a, Buffer)}

    def named_buffers(self) -> dict[str, np.ndarray]:
        return {n: a for n, a in self.named_arrays().items() if isinstance(a, Buffer)}

    def parameters(self) -> list[np.ndarray]:
        return list(self.named_parameters().values())

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        seen: set[int] = set()

        def walk(item: Any) -> Iterator[Module]:
            if isinstance(item, Module):
                if id(item) in seen:
                    return
                seen.add(id(item))
                yield item
                for child in vars(item).values():
                    yield from walk(child)
            elif isinstance(item, list | tuple):
                for child in item:
                    yield from walk(child)
            elif isinstance(item, Mapping):
                for child in item.values():
                    yield from walk(child)

        yield from walk(self)

    def name_of(self, child: Module) -> str:
        """How a module is called that this one holds; "" when it holds it not, or not in a list or dict of its own."""
        for name, item in vars(self).items():
            if item is child:
                return name
            members = enumerate(item) if isinstance(item, list | tuple) else item.items() if isinstance(item, Mapping) else ()
            for key, member in members:
                if member is child:
                    return f"{name}.{key}"
        return ""

    def train(self, mode: bool = True) -> Self:
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        return self.train(False)

    def slots(self) -> Iterator[tuple[str, Any, Any]]:
        """Where arrays are kept: (dotted name, holder, key), in the order of assignment."""
        found: list[tuple[str, Any, Any]] = []
        _find_slots(self, "", set(), found)
        yield from found

    def state_dict(self) -> dict[str, np.ndarray]:
        return dict(self.named_arrays())

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set parameters and buffers by name. All names and shapes are checked before any is set."""
        own = self.named_arrays()
        missing, unknown = sorted(own.keys() - arrays.keys()), sorted(arrays.keys() - own.keys())
        if missing or unknown:
            raise ValueError(f"names do not fit: missing {missing}, unknown {unknown}")
        for name, array in own.items():
            if array.shape != arrays[name].shape:
                raise ValueError(f"{name} has shape {array.shape}, given {arrays[name].shape}")
        for name, array in own.items():
            array[...] = arrays[name]

    def with_arrays(self, replacement: Callable[[str, np.ndarray], Any]) -> Self:
        """A copy of the module tree in which each parameter and buffer is replacement(name, array)."""
        made: dict[int, Any] = {}
        names = {id(array): name for name, array in self.named_arrays().items()}

        def rebuild(item: Any) -> Any:
            if id(item) in made:
                return made[id(item)]
            if isinstance(item, np.ndarray) and id(item) in names:
                made[id(item)] = result = replacement(names[id(item)], item)
            elif isinstance(item, Module):
                made[id(item)] = result = copy.copy(item)
                result.buffer_names |= {key for key, value in vars(item).items() if isinstance(value, Buffer)}
                for key, value in vars(item).items():
                    result.__dict__[key] = rebuild(value)
            elif isinstance(item, list):
                result = [rebuild(i) for i in item]
            elif isinstance(item, tuple) and type(item) is tuple:
                result = tuple(rebuild(i) for i in item)
            elif isinstance(item, dict):
                result = {k: rebuild(v) for k, v in item.items()}
            else:
                result = item
            return result

        return rebuild(self)

    def __repr__(self) -> str:
        lines = []
        for key, value in vars(self).items():
            if isinstance(value, Module):
                lines.append(f"  {key}: " + repr(value).replace("\n", "\n  "))
            elif isinstance(value, np.ndarray):
                lines.append(f"  {key}: {value.dtype}{list(value.shape)}")
        inside = "\n".join(lines)
        return f"{type(self).__name__}(\n{inside}\n)" if lines else f"{type(self).__name__}()"


def definition_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a caller's arguments go to: a module's `forward`, or `__call__` where its class defines that instead."""
    if isinstance(function, Module) and type(function).__call__ is Module.__call__:
        return function.forward
    return function


def _type_name(array: np.ndarray) -> str:
    return repr(type_of(array)).replace("[]", "[()]")


def _read(holder: Any, key: Any) -> Any:
    return holder.__dict__[key] if isinstance(holder, Module) else holder[key]


def write_slot(holder: Any, key: Any, array: np.ndarray) -> None:
    if isinstance(holder, Module):
        holder.__dict__[key] = array
    else:
        holder[key] = array


def _is_state(item: Any) -> bool:
    return isinstance(item, np.ndarray) and (item.dtype.num in _FLOATS or isinstance(item, Buffer))


_FLOATS = frozenset(t.numpy.num for t in (f16, bf16, f32, f64))  # NumPy's numbers: of either byte order


def _find_slots(item: Any, prefix: str, seen: set[int], found: list[tuple[str, Any, Any]]) -> None:
    if isinstance(item, Module):
        if id(item) in seen:
            return
        seen.add(id(item))
        entries = list(vars(item).items())
    elif isinstance(item, list):
        entries = list(enumerate(item))
    elif isinstance(item, tuple) and type(item) is tuple:
        entries = [(n, i) for n, i in enumerate(item) if not _is_state(i)]
    elif isinstance(item, dict):
        entries = list(item.items())
    else:
        return
    for key, value in entries:
        if isinstance(value, Module | list | tuple | dict):
            _find_slots(value, f"{prefix}{key}.", seen, found)
        elif _is_state(value):
            found.append((f"{prefix}{key}", item, key))
