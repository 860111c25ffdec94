"""What others say about a model that was changed but is still sound: ONNX's reference evaluator and ONNX Runtime.

Either has mistakes of its own, so an answer counts as wrong where the two agree with each other and not with it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
COARSE = {"float16": 2e-2, "bfloat16": 5e-2}  # of what is stored in few bits
NEAR, FAR = 1e-3, 1e-2  # of the largest number: the peers from each other, the answer from them
_NOT_REPRESENTED = {"int32": -(1 << 31), "int64": -(1 << 63)}  # what x86 makes of a float that is too large
# Where ONNX leaves open what becomes of numbers that are not finite: a convolution may spread them, a window with a NaN
# has it as its maximum or skips it, a score that a mask hides has -inf added to it, NaN too.
OPEN_TO_INFINITIES = frozenset({"Attention", "Conv", "ConvTranspose", "MaxPool"})


@dataclass(frozen=True)
class Answer:
    """What a model was given, and what came out."""

    inputs: dict[str, Any]
    results: Sequence[Any]


def judged(model: bytes, answers: Sequence[Answer]) -> tuple[str, str]:
    """("alone", what) where both peers agree on something else; ("doubted", what) where one of them is there and says
    something else; else ("", "")."""
    proto = onnx.load_model_from_string(model)
    ops = {node.op_type for graph in _graphs(proto) for node in graph.node}
    if ops & RANDOM:
        return "", ""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception:  # what is not sound has no answer
        return "", ""
    doubt = ""
    for answer in answers:
        if ops & OPEN_TO_INFINITIES and not _is_plain(answer.inputs):
            continue
        given = [r for r in (_asked(ask, proto, answer.inputs) for ask in (_reference, _runtime)) if r is not None]
        if not given:
            continue
        names = [o.name for o in proto.graph.output]
        wrong = [_difference(names, answer, results) for results in given]
        if not all(wrong):
            continue
        if len(given) == 2 and not _difference(names, Answer(answer.inputs, given[0]), given[1], NEAR):
            return "alone", f"{wrong[0]}\n{_shown(answer.inputs)}"
        doubt = doubt or f"{len(given)} of 2: {' / '.join(wrong)}\n{_shown(answer.inputs)}"
    return ("doubted", doubt) if doubt else ("", "")


def _is_plain(inputs: dict[str, Any]) -> bool:
    """Whether all floats among the inputs are finite."""
    arrays = [np.asarray(v) for v in inputs.values()]
    return all(a.dtype.kind in "biuOUST" or bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays)


def _graphs(model: onnx.ModelProto) -> list[Any]:
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        found += [g for node in graph.node for a in node.attribute for g in (*([a.g] if a.HasField("g") else ()), *a.graphs)]
    return found


def _asked(ask: Callable[..., Any], model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any] | None:
    """The results of a peer; None where it has none, for whatever reason."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            return list(ask(model, inputs))
    except Exception:
        return None


def _reference(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    return ReferenceEvaluator(model).run(None, inputs)


def _runtime(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    if onnxruntime is None:
        raise NotImplementedError
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def _difference(names: Sequence[str], answer: Answer, expected: Sequence[Any], tolerance: float = FAR) -> str:
    if len(answer.results) != len(expected):
        return f"{len(answer.results)} results instead of {len(expected)}"
    for name, found, wanted in zip(names, answer.results, expected, strict=False):
        if np.asarray(wanted).dtype.kind in "iu" and not _is_plain(answer.inputs):
            continue  # which integer a NaN becomes, or which of several is the largest, is nobody's to say
        text = _unlike(found, wanted, tolerance)
        if text:
            return f"{name}: {text}"
    return ""


def _unlike(found: Any, wanted: Any, tolerance: float) -> str:
    if isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(wanted):
            return f"{_brief(found)} instead of {_brief(wanted)}"
        return next((t for t in (_unlike(f, w, tolerance) for f, w in zip(found, wanted, strict=True)) if t), "")
    if wanted is None or isinstance(wanted, dict):
        return "" if found == wanted else f"{_brief(found)} instead of {_brief(wanted)}"
    a, b = np.asarray(found), np.asarray(wanted)
    if a.shape != b.shape:
        return f"has the shape {a.shape} instead of {b.shape}"
    if a.dtype.kind in "OUST" or b.dtype.kind in "OUST":
        return "" if a.astype(str).tolist() == b.astype(str).tolist() else f"{_brief(a)} instead of {_brief(b)}"
    if a.dtype != b.dtype:
        return f"is {a.dtype} instead of {b.dtype}"
    if a.dtype.kind == "c" or (a.dtype.kind not in "biuf" and a.dtype.name not in COARSE):
        return "" if a.tobytes() == b.tobytes() else f"{_brief(a)} instead of {_brief(b)}"
    if a.dtype.kind == "b":
        bad = a != b
    elif a.dtype.kind in "iu":
        apart = 1 if a.dtype.itemsize == 1 else 0  # what is quantised may be rounded the other way
        bad = np.abs(a.astype(np.float64) - b.astype(np.float64)) > apart
        if a.dtype.name in _NOT_REPRESENTED:
            bad &= b != _NOT_REPRESENTED[a.dtype.name]
    else:
        wide, expected = a.astype(np.float64), b.astype(np.float64)
        finite = expected[np.isfinite(expected)]
        scale = float(np.max(np.abs(finite), initial=1e-30)) if finite.size else 1.0
        room = tolerance * np.abs(np.nan_to_num(expected)) + tolerance * 0.01 * scale + COARSE.get(a.dtype.name, 0) * scale
        with np.errstate(all="ignore"):
            bad = ~((wide == expected) | (np.isnan(wide) & np.isnan(expected)) | (np.abs(wide - expected) <= room))
    if not bad.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} elements differ, first {a[place]!r} instead of {b[place]!r} at {list(place)}"


def _brief(value: Any) -> str:
    return " ".join(str(value).split())[:200]


def _shown(inputs: dict[str, Any]) -> str:
    return "\n".join(f"{n} = {getattr(v, 'dtype', '')}{list(getattr(v, 'shape', []))} {_brief(v)}" for n, v in inputs.items())
