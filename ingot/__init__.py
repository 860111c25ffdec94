"""Ingot casts deep-learning models into native code.

Everything is loaded when it is first used: `ingot.load` runs a saved program without importing the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_TYPES = ("f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")

_WHERE: dict[str, tuple[str, str]] = {
    **{name: ("ingot.compiler.ir.types", name) for name in _TYPES},
    "boolean": ("ingot.compiler.ir.types", "boolean"),
    "TensorType": ("ingot.compiler.ir.types", "TensorType"),
    "dim": ("ingot.compiler.ir.symbolic", "Symbol"),
    "Options": ("ingot.compiler.options", "Options"),
    "IngotError": ("ingot.compiler.errors", "IngotError"),
    "Tensor": ("ingot.frontends.dsl.tensor", "Tensor"),
    **{
        name: ("ingot.frontends.dsl.api", name)
        for name in (
            *("compile", "jit", "interpret", "check_finite"),
            *("grad", "value_and_grad", "vjp", "jvp", "jacobian", "hessian"),
        )
    },
    **{
        name: ("ingot.frontends.dsl.functions", name)
        for name in ("trace", "cond", "while_loop", "scan", "stop_gradient", "custom_gradient")
    },
    "Trainer": ("ingot.frontends.dsl.trainer", "Trainer"),
    "load": ("ingot.runtime.executable", "load"),
    "load_onnx": ("ingot.frontends.onnx", "load_onnx"),
    "check_onnx": ("ingot.frontends.onnx", "check_onnx"),
    "save_onnx": ("ingot.frontends.onnx", "save_onnx"),
    "build": ("ingot.frontends.build", "build"),
}
_MODULES: dict[str, str] = {
    "nn": "ingot.frontends.dsl.nn",
    "optim": "ingot.frontends.dsl.optim",
    "data": "ingot.frontends.dsl.data",
    "ops": "ingot.frontends.dsl.ops",
    "random": "ingot.frontends.dsl.random",
}

__all__ = sorted({*_WHERE, *_MODULES})  # noqa: PLE0605  it is a list


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _WHERE:
        module, attribute = _WHERE[name]
        found = getattr(import_module(module), attribute)
    else:
        operations = import_module(_MODULES["ops"])
        if name.startswith("_") or not hasattr(operations, name):
            raise AttributeError(f"module 'ingot' has no attribute {name!r}")
        found = getattr(operations, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
