"""The standard ONNX backend interface, for tools that run any backend: prepare, run_model, run_node, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep

from ingot.compiler.options import Options
from ingot.frontends.onnx.elements import element_of
from ingot.frontends.onnx.executable import OnnxExecutable
from ingot.frontends.onnx.loading import load_onnx
from ingot.frontends.onnx.problems import OnnxError


class IngotRep(BackendRep):
    """A prepared model."""

    def __init__(self, executable: Any) -> None:
        super().__init__()
        self.executable = executable

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for a sequence of inputs in order, a dict of them by name, or a single array."""
        if isinstance(inputs, dict):
            result = self.executable(**inputs)
        else:
            given = inputs if isinstance(inputs, list | tuple) else [inputs]
            result = self.executable(*given)
        if isinstance(self.executable, OnnxExecutable) and len(self.executable.output_names) == 1:
            return (result,)
        return result if isinstance(result, tuple) else (result,)


class IngotBackend(Backend):
    """Compiled on this machine's processor."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        try:
            load_onnx(model)
        except OnnxError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> IngotRep:
        if not cls.supports_device(device):
            raise ValueError(f"there is no device {device!r} here; use CPU")
        options = kwargs.get("options") or Options.from_environment()
        return IngotRep(load_onnx(model).compile_for((), options))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """One node by itself, in the newest opset or the one given as opset_version."""
        given = dict(zip([n for n in node.input if n], inputs, strict=False)) if not isinstance(inputs, dict) else inputs
        described = [_described(name, np.asarray(array)) for name, array in given.items()]
        outputs = [ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], node.op_type or "node", described, outputs)
        version = int(kwargs.get("opset_version") or defs.onnx_opset_version())
        opsets = [helper.make_opsetid("", version)]
        if node.domain not in ("", "ai.onnx"):
            opsets.append(helper.make_opsetid(node.domain, int(kwargs.get("domain_version") or 1)))
        model = helper.make_model(graph, opset_imports=opsets)
        return cls.run_model(model, {n: np.asarray(a) for n, a in given.items()}, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0].upper() == "CPU"


def _described(name: str, array: np.ndarray) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_of(array).code, array.shape)


is_compatible = IngotBackend.is_compatible
prepare = IngotBackend.prepare
run_model = IngotBackend.run_model
run_node = IngotBackend.run_node
supports_device = IngotBackend.supports_device
