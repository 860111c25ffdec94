"""load_onnx: a file, checked as a whole, as a Module."""

from __future__ import annotations

import os

from ingot.frontends.onnx.doctor import structure_problems
from ingot.frontends.onnx.model import OnnxModule
from ingot.frontends.onnx.problems import OnnxError, ProblemError
from ingot.frontends.onnx.source import read_model


def load_onnx(source: object) -> OnnxModule:
    """A model from a path, the bytes of a file, or a ModelProto. An OnnxError lists everything that is wrong."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    try:
        model = read_model(source)
    except ProblemError as error:
        raise OnnxError([error.at("")], str(name)) from None
    problems = structure_problems(model)
    if problems:
        raise OnnxError(problems, model.name)
    return OnnxModule(model)
