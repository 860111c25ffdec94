"""Classical machine learning (ai.onnx.ml): linear models, support vectors, scalers and encoders.

Labels that are strings are the host's: the model computes their number, a LabelEncoder names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from ingot.compiler.ir.types import f32, f64, i64
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.indexing import Gather
from ingot.compiler.ops.movement import concat, stack
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call, Inline, NotTraceable
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import ML, onnx_op

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def floats(x: Tensor) -> Any:
    return x if x.dtype in (f32, f64) else x.cast(f32)


def rows(x: Tensor) -> Any:
    """A vector is one row."""
    return x if x.rank > 1 else x.reshape(1, *x.shape)


# --- results ----------------------------------------------------------------------------------------


def transformed(scores: Any, how: str) -> Any:
    """What is done to the scores of the classes in the end."""
    match how:
        case "SOFTMAX":
            return scores.softmax(-1)
        case "LOGISTIC":
            return scores.sigmoid()
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores)
        case "PROBIT":
            return _probit(scores)
    return scores


def _softmax_zero(scores: Any) -> Any:
    """A softmax in which scores of 0 stay 0."""
    top = scores.reduce("max", (scores.rank - 1,), True)
    kept = scores.abs() > 0.0000001
    powers = kept.where((scores - top).exp(), scores * (-top).exp())
    total = powers.reduce("sum", (scores.rank - 1,), True)
    return (total == 0.0).where(0.5, powers / (total == 0.0).where(1.0, total))


def _probit(x: Any) -> Any:
    """The inverse of the normal distribution, by Winitzki's approximation of the inverse error function (2008)."""
    y = x * 2.0 - 1.0
    inside = (1.0 - y) * (1.0 + y)
    log = (inside == 0.0).where(1.0, inside).log()
    v = log * 0.5 + 2.0 / (np.pi * 0.147)
    root = ((v * v - log / 0.147).sqrt() - v).sqrt()
    return (inside == 0.0).where(0.0, (y < 0.0).where(-root, root)) * 1.41421356


def labelled(op: Call, numbers: Any, attribute: str) -> Any:
    """Class numbers as integer labels."""
    names = op.get(attribute, None)
    if not names or list(names) == list(range(len(names))):
        return numbers.cast(i64)
    return op.constant(np.asarray(names, np.int64)).apply(Gather(0), numbers.cast(i64))


def string_labels(op: Call, attribute: str) -> Inline | None:
    """The node with numbers for labels, and an encoder that makes strings of them; None when labels are numbers."""
    names = op.get("classlabels_strings", None)
    if not names:
        return None
    node = NodeProto()
    node.CopyFrom(op.node)
    del node.attribute[:], node.output[:]
    node.attribute.extend(a for a in op.node.attribute if a.name != "classlabels_strings")
    node.attribute.append(helper.make_attribute(attribute, list(range(len(names)))))
    node.output.extend(["number", "scores"])
    encoder = helper.make_node(
        "LabelEncoder", ["number"], ["label"], domain=ML, keys_int64s=list(range(len(names))), values_strings=names
    )
    graph = GraphProto(node=[node, encoder], name="labels")
    for name in ("label", "scores"):
        graph.output.add().name = name
    return Inline(graph)


# --- linear -----------------------------------------------------------------------------------------


def _rows_of(op: Call, numbers: Sequence[float], rows: int, dtype: Any) -> np.ndarray:
    """Numbers as a matrix of so many rows."""
    op.require(rows > 0 and numbers and len(numbers) % rows == 0, Kind.BAD_ATTRIBUTE, f"{len(numbers)} numbers are not {rows} rows")
    return np.asarray(numbers, dtype).reshape(rows, -1)


def _width(op: Call, x: Any) -> int:
    """The number of features, which must be known."""
    op.require(x.rank == 2 and isinstance(x.shape[1], int), Kind.BAD_SHAPE, f"it takes rows of features, not {x.type!r}")
    return int(x.shape[1])


@onnx_op("LinearRegressor", domain=ML, least_ranks={0: 1})
def linear_regressor(op: Call, x: Tensor) -> Any:
    data = rows(floats(x))
    weight = _rows_of(op, op.get("coefficients"), op.get("targets", 1), data.dtype.numpy)
    scores = contract(data, "nf", op.constant(weight), "tf", "nt")
    if op.has("intercepts"):
        scores = scores + op.constant(np.asarray(op.get("intercepts"), data.dtype.numpy))
    return transformed(scores, op.choice("post_transform", "NONE", TRANSFORMS))


@onnx_op("LinearClassifier", domain=ML, least_ranks={0: 1})
def linear_classifier(op: Call, x: Tensor) -> Any:
    named = string_labels(op, "classlabels_ints")
    if named is not None:
        return named
    data = rows(floats(x))
    numbers, width = op.get("coefficients"), _width(op, data)
    weight = _rows_of(op, numbers, len(numbers) // max(width, 1), data.dtype.numpy)
    scores = contract(data, "nf", op.constant(weight), "cf", "nc")
    if op.has("intercepts"):
        scores = scores + op.constant(np.asarray(op.get("intercepts"), data.dtype.numpy))
    how = op.choice("post_transform", "NONE", TRANSFORMS)
    classes = len(op.get("classlabels_ints", []))
    if weight.shape[0] == 1 and classes == 2:
        scores = concat([-scores, scores], 1)
    result = transformed(scores, how)
    if scores.shape[1] == 1:
        hit = result >= (0.0 if how == "NONE" else 0.5)
        first = op.get("classlabels_ints", [1])[0]
        return hit.reshape(hit.shape[0]).where(op.constant(np.asarray(first, np.int64)), 0), result
    return labelled(op, result.argmax(1), "classlabels_ints"), result


# --- support vectors --------------------------------------------------------------------------------


def _kernel(op: Call, x: Any, vectors: np.ndarray) -> Any:
    """[rows, vectors]: the kernel of each row with each support vector."""
    gamma, shift, degree = (*op.get("kernel_params", [0.0, 0.0, 0.0]), 0.0, 0.0)[:3]
    kind = op.choice("kernel_type", "LINEAR", ("LINEAR", "POLY", "RBF", "SIGMOID"))
    sv = op.constant(vectors.astype(x.dtype.numpy))
    if kind == "RBF":
        difference = x.reshape(x.shape[0], 1, x.shape[1]) - sv.reshape(1, *sv.shape)
        return ((difference * difference).reduce("sum", (2,)) * -gamma).exp()
    product = contract(x, "nf", sv, "vf", "nv")
    if kind == "LINEAR":
        return product
    inner = product * gamma + shift
    return inner.tanh() if kind == "SIGMOID" else inner ** float(int(degree))


def _rho(op: Call) -> list[float]:
    found = op.get("rho")
    op.require(found, Kind.BAD_ATTRIBUTE, "rho is empty")
    return found


@onnx_op("SVMRegressor", domain=ML, least_ranks={0: 1})
def svm_regressor(op: Call, x: Tensor) -> Any:
    data = rows(floats(x))
    weights = np.asarray(op.get("coefficients"), data.dtype.numpy)
    supports = op.get("n_supports", 0)
    if supports:
        kernel = _kernel(op, data, _rows_of(op, op.get("support_vectors"), supports, np.float32))
        total = contract(kernel, "nv", op.constant(weights), "v", "n")
    else:
        total = contract(data, "nf", op.constant(weights), "f", "n")
    total = (total + _rho(op)[0]).reshape(total.shape[0], 1)
    if op.get("one_class", 0):
        return (total > 0.0).where(1.0, -1.0).cast(data.dtype)
    return transformed(total, op.choice("post_transform", "NONE", TRANSFORMS))


@onnx_op("SVMClassifier", domain=ML, least_ranks={0: 1})
def svm_classifier(op: Call, x: Tensor) -> Any:
    named = string_labels(op, "classlabels_ints")
    if named is not None:
        return named
    data = rows(floats(x))
    rho = _rho(op)
    count = len(op.get("classlabels_ints", [])) or 1
    weights = np.asarray(op.get("coefficients"), data.dtype.numpy)
    how = op.choice("post_transform", "NONE", TRANSFORMS)
    per_class = op.get("vectors_per_class", None)
    if not per_class:  # one linear model per class
        matrix = _rows_of(op, op.get("coefficients"), count, data.dtype.numpy)
        scores = contract(data, "nf", op.constant(matrix), "cf", "nc") + rho[0]
        return labelled(op, scores.argmax(1), "classlabels_ints"), transformed(scores, how)
    pairs, votes = _pairwise(op, data, weights, per_class)
    if op.has("prob_a"):
        scores = _probabilities(op, pairs, count)
    else:
        scores = concat([-pairs, pairs], 1) if len(rho) == 1 else pairs
    return labelled(op, votes.argmax(1), "classlabels_ints"), transformed(scores, how)


def _pairwise(op: Call, data: Any, weights: np.ndarray, per_class: Sequence[int]) -> tuple[Any, Any]:
    """(decision of each pair of classes, votes for each class)"""
    total, classes = sum(per_class), len(per_class)
    op.require(all(n >= 0 for n in per_class) and classes > 1, Kind.BAD_ATTRIBUTE, f"vectors_per_class is {list(per_class)}")
    vectors = _rows_of(op, op.get("support_vectors"), total, np.float32)
    coefficients = _rows_of(op, weights.tolist(), classes - 1, weights.dtype)
    op.require(coefficients.shape[1] == total, Kind.BAD_ATTRIBUTE, f"{weights.size} coefficients of {total} vectors")
    pair_count = op.bounded(classes * (classes - 1) // 2, "the number of pairs of classes")
    op.require(len(_rho(op)) == pair_count, Kind.BAD_ATTRIBUTE, f"rho has {len(_rho(op))} numbers, not {pair_count}")
    starts = np.concatenate(([0], np.cumsum(per_class)))
    pairs = [(i, j) for i in range(len(per_class)) for j in range(i + 1, len(per_class))]
    matrix = np.zeros((total, len(pairs)), weights.dtype)
    winners = np.zeros((2, len(pairs), len(per_class)), weights.dtype)
    for n, (i, j) in enumerate(pairs):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        matrix[first, n] = coefficients[j - 1, first]
        matrix[second, n] = coefficients[i, second]
        winners[0, n, i] = winners[1, n, j] = 1
    kernel = _kernel(op, data, vectors)
    decision = contract(kernel, "nv", op.constant(matrix), "vp", "np")
    decision = decision + op.constant(np.asarray(op.get("rho"), weights.dtype))
    yes = (decision > 0.0).cast(data.dtype)
    votes = contract(yes, "np", op.constant(winners[0]), "pc", "nc")
    return decision, votes + contract(1.0 - yes, "np", op.constant(winners[1]), "pc", "nc")


def _probabilities(op: Call, pairs: Any, count: int) -> Any:
    """Class probabilities from those of the pairs (Wu, Lin and Weng, Probability Estimates for Multi-class
    Classification by Pairwise Coupling, 2004, second method)."""
    pair_count = count * (count - 1) // 2
    for name in ("prob_a", "prob_b"):
        op.require(len(op.get(name, [])) == pair_count, Kind.BAD_ATTRIBUTE, f"{name} has not {pair_count} numbers")
    op.require(pairs.shape[1] == pair_count and count > 1, Kind.BAD_ATTRIBUTE, f"{count} labels for {pairs.shape[1]} pairs")
    a, b = (op.constant(np.asarray(op.get(n), pairs.dtype.numpy)) for n in ("prob_a", "prob_b"))
    each = (1.0 - (pairs * a + b).sigmoid()).clip(1e-7, 1 - 1e-7)
    table: list[list[Any]] = [[None] * count for _ in range(count)]
    number = 0
    for i in range(count):
        for j in range(i + 1, count):
            table[i][j], table[j][i] = each[:, number], 1.0 - each[:, number]
            number += 1
    q: list[list[Any]] = [[None] * count for _ in range(count)]
    for t in range(count):
        q[t][t] = _added([table[j][t] * table[j][t] for j in range(count) if j != t])
        for j in range(count):
            if j != t:
                q[t][j] = -(table[j][t] * table[t][j])
    matrix = stack([stack(row, -1) for row in q], 1)  # [n, class, class]
    start = pairs.full((pairs.shape[0], count), 1.0 / count)
    unfinished = pairs.full((pairs.shape[0],), 1.0)

    def step(carry: Any, _: Any) -> Any:
        p, going = carry
        return _coupled(p, going, matrix, count), None

    (result, _), _ = functions.scan(step, (start, unfinished), None, max(100, count))
    return result


def _coupled(p: Any, going: Any, matrix: Any, count: int) -> tuple[Any, Any]:
    """One sweep of the fixed point iteration; rows that have converged stay."""
    qp = contract(matrix, "nij", p, "nj", "ni")
    pqp = (p * qp).reduce("sum", (1,))
    error = (qp - pqp.expand_dims(1)).abs().reduce("max", (1,))
    going = (error < 0.005 / count).where(0.0, going)
    new, mean = p, pqp
    for t in range(count):
        diagonal = matrix[:, t, t]
        change = (mean - qp[:, t]) / diagonal
        mean = (mean + change * (change * diagonal + qp[:, t] * 2.0)) / ((1.0 + change) * (1.0 + change))
        unit = change.constant(np.eye(count, dtype=p.dtype.numpy)[t].tolist())
        scale = (1.0 + change).expand_dims(1)
        new = (new + change.expand_dims(1) * unit) / scale
        qp = (qp + change.expand_dims(1) * matrix[:, t]) / scale
    return (going.expand_dims(1) > 0.0).where(new, p), going


def _added(parts: Sequence[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# --- features ---------------------------------------------------------------------------------------


@onnx_op("Binarizer", domain=ML)
def binarizer(op: Call, x: Tensor) -> Any:
    return (x > op.get("threshold", 0.0)).cast(x.dtype)


@onnx_op("Scaler", domain=ML)
def scaler(op: Call, x: Tensor) -> Any:
    data = x.cast(f32)
    shift, factor = (op.constant(np.asarray(op.get(n), np.float32)) for n in ("offset", "scale"))
    return (data - shift) * factor


@onnx_op("Normalizer", domain=ML, least_ranks={0: 1})
def normalizer(op: Call, x: Tensor) -> Any:
    data = rows(x.cast(f32))
    match op.choice("norm", "MAX", ("MAX", "L1", "L2")):
        case "MAX":
            size = data.reduce("max", (1,), True)
        case "L1":
            size = data.abs().reduce("sum", (1,), True)
        case _:
            size = (data * data).reduce("sum", (1,), True).sqrt()
    return (data / (size == 0.0).where(1.0, size)).reshape(*x.shape)


@onnx_op("Imputer", domain=ML)
def imputer(op: Call, x: Tensor) -> Any:
    ints = op.get("imputed_value_int64s", None)
    values = np.asarray(ints if ints else op.get("imputed_value_floats"), x.dtype.numpy)
    missing = op.get("replaced_value_int64", 0) if ints else op.get("replaced_value_float", 0.0)
    gone = x.is_nan() if x.dtype.is_float and np.isnan(missing) else x == missing
    return gone.where(op.constant(values if values.size > 1 else values.reshape(())), x)


@onnx_op("FeatureVectorizer", domain=ML, least_ranks={0: 1})
def feature_vectorizer(op: Call, *parts: Tensor) -> Any:
    """Columns side by side; each part is cut or filled to its declared width."""
    op.require(all(p.rank >= 1 for p in parts), Kind.BAD_SHAPE, "an input has no axes; each has 1 or more")
    widths = op.get("inputdimensions", [int(rows(p).shape[1]) for p in parts])  # type: ignore[arg-type]
    op.require(len(widths) == len(parts), Kind.BAD_ATTRIBUTE, f"{len(widths)} widths for {len(parts)} inputs")
    made = []
    for part, width in zip(parts, widths, strict=True):
        data = rows(part.cast(f32))
        flat = data.reshape(data.shape[0], -1)
        made.append(flat.pad(low=(0, 0), high=(0, width - flat.shape[1]), mode="constant", value=0.0))
    return concat(made, 1) if len(made) > 1 else made[0]


@onnx_op("OneHotEncoder", domain=ML)
def one_hot_encoder(op: Call, x: Tensor) -> Any:
    names = op.get("cats_int64s", None)
    if not names:
        raise NotTraceable("OneHotEncoder with categories that are strings")
    known = op.constant(np.asarray(names, np.int64))
    return (x.cast(i64).reshape(*x.shape, 1) == known).cast(f32)


_KEYS = ("keys_int64s", "keys_floats", "keys_tensor")
_VALUES = ("values_int64s", "values_floats", "values_tensor")


@onnx_op("LabelEncoder", domain=ML)
def label_encoder(op: Call, x: Tensor) -> Any:
    """Each key becomes its value, anything else the default. Strings are the host's."""
    keys = _table(op, _KEYS)
    values = _table(op, _VALUES)
    if keys is None or values is None or op.has("classes_strings"):
        raise NotTraceable("LabelEncoder with strings")
    op.require(len(keys) == len(values) > 0, Kind.BAD_ATTRIBUTE, f"{len(keys)} keys for {len(values)} values")
    default = _default(op, values)
    table = op.constant(np.append(values, default).astype(values.dtype))
    known = op.constant(keys.astype(x.dtype.numpy))
    data = x.reshape(*x.shape, 1)
    hit = data == known
    if x.dtype.is_float and np.isnan(keys.astype(np.float64)).any():
        hit = hit | (data.is_nan() & known.is_nan())
    place = hit.where(op.constant(np.arange(len(keys))), len(keys)).reduce("min", (x.rank,))
    return table.apply(Gather(0), place)


def _table(op: Call, names: Sequence[str]) -> np.ndarray | None:
    for name in names:
        if op.has(name):
            found = op.get(name)
            dtype = np.int64 if name.endswith("int64s") else np.float32
            array = found if isinstance(found, np.ndarray) else np.asarray(found, dtype)
            return None if array.dtype == object else array.reshape(-1)
    return None


def _default(op: Call, values: np.ndarray) -> Any:
    if op.has("default_tensor"):
        return op.get("default_tensor").reshape(-1)[0]
    if values.dtype.kind in "iu":
        return op.get("default_int64", -1)
    return op.get("default_float", -0.0)

