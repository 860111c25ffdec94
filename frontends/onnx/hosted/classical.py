"""Classical machine learning on strings and maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot.frontends.onnx.call import MOST_ELEMENTS
from ingot.frontends.onnx.host import host_op
from ingot.frontends.onnx.hosted.strings import texts
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.registry import ML
from ingot.frontends.onnx.values import number_of


def _list(call: Any, *names: str) -> list[Any] | None:
    for name in names:
        if call.has(name):
            found = call.get(name)
            return found.ravel().tolist() if isinstance(found, np.ndarray) else list(found)
    return None


def _plain(array: np.ndarray) -> list[Any]:
    return texts(array).ravel().tolist() if array.dtype.kind in "OUS" else array.ravel().tolist()


def _as_array(values: list[Any], shape: tuple[int, ...], like: Any) -> np.ndarray:
    if isinstance(like, str):
        made = np.empty(len(values), object)
        made[:] = values
        return made.reshape(shape)
    dtype = np.int64 if isinstance(like, int) else np.float32
    return np.array(values, dtype).reshape(shape)


@host_op("LabelEncoder", domain=ML)
def label_encoder(call: Any, x: np.ndarray) -> np.ndarray:
    if call.has("classes_strings"):  # version 1: the classes' numbers and back
        classes = call.get("classes_strings")
        if x.dtype.kind in "OUS":
            table, default = {c: n for n, c in enumerate(classes)}, call.get("default_int64", -1)
        else:
            table, default = dict(enumerate(classes)), call.get("default_string", "_Unused")
        return _as_array([table.get(k, default) for k in _plain(x)], x.shape, default)
    keys = _list(call, "keys_strings", "keys_int64s", "keys_floats", "keys_tensor") or []
    values = _list(call, "values_strings", "values_int64s", "values_floats", "values_tensor") or []
    if len(keys) != len(values) or not values:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"LabelEncoder has {len(keys)} keys for {len(values)} values")
    table = dict(zip(keys, values, strict=True))
    if call.has("default_tensor"):
        default = number_of(call.get("default_tensor"), "default_tensor of LabelEncoder")
    elif isinstance(values[0], str):
        default = call.get("default_string", "_Unused")
    elif isinstance(values[0], int):
        default = call.get("default_int64", -1)
    else:
        default = call.get("default_float", -0.0)
    found = _as_array([table.get(k, default) for k in _plain(x)], x.shape, values[0])
    return found.astype(call.get("values_tensor").dtype) if call.has("values_tensor") else found


@host_op("CategoryMapper", domain=ML)
def category_mapper(call: Any, x: np.ndarray) -> np.ndarray:
    names, numbers = call.get("cats_strings"), call.get("cats_int64s")
    if len(names) != len(numbers):
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"CategoryMapper has {len(names)} strings for {len(numbers)} numbers")
    if x.dtype.kind in "OUS":
        table, default = dict(zip(names, numbers, strict=True)), call.get("default_int64", -1)
    else:
        table, default = dict(zip(numbers, names, strict=True)), call.get("default_string", "_Unused")
    return _as_array([table.get(k, default) for k in _plain(x)], x.shape, default)


@host_op("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Any, x: np.ndarray) -> np.ndarray:
    names = call.get("cats_strings")
    return np.array([[k == name for name in names] for k in _plain(x)], np.float32).reshape(*x.shape, len(names))


@host_op("DictVectorizer", domain=ML)
def dict_vectorizer(call: Any, x: Any) -> np.ndarray:
    names = _list(call, "string_vocabulary", "int64_vocabulary") or []
    rows = x if isinstance(x, list) else [x]
    values = [[row.get(name, 0) for name in names] for row in rows]
    sample = next((v for row in rows for v in row.values()), 0.0)
    return np.array(values, np.int64 if isinstance(sample, int | np.integer) else np.float32)


@host_op("CastMap", domain=ML)
def cast_map(call: Any, x: dict[int, Any]) -> np.ndarray:
    """A map from numbers to values as a row: dense, or with default values up to max_map."""
    kinds = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}
    wanted = call.get("cast_to", "TO_FLOAT")
    if wanted not in kinds:
        raise ProblemError(Kind.BAD_ATTRIBUTE, f"CastMap: cast_to is {wanted!r}; it is one of {', '.join(kinds)}")
    dtype = kinds[wanted]
    if call.get("map_form", "DENSE") == "DENSE":
        row = [x[k] for k in sorted(x)]
    else:
        count = call.get("max_map", 1)
        if count > MOST_ELEMENTS:
            raise ProblemError(Kind.TOO_LARGE, f"CastMap makes {count} columns; {MOST_ELEMENTS} are the most")
        row = [x.get(k, 0) for k in range(count)]
    made = np.empty((1, len(row)), dtype)
    made[0, :] = [str(v) for v in row] if dtype is object else [float(v) for v in row]
    return made


@host_op("ZipMap", domain=ML)
def zip_map(call: Any, x: np.ndarray) -> Any:
    """Each row as a map from class to score."""
    names = _list(call, "classlabels_strings", "classlabels_int64s") or []
    rows = x if x.ndim > 1 else x.reshape(1, -1)
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise ProblemError(Kind.BAD_SHAPE, f"ZipMap has {len(names)} labels for scores of the shape {list(x.shape)}")
    return [[dict(zip(names, map(np.float32, row.tolist()), strict=True)) for row in rows]]
