"""Element types by the names that manifests use."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "bool": np.bool_,
        "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    }.items()
}  # fmt: skip

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: np.dtype) -> str:
    """The manifest's name of a dtype, or NumPy's when manifests have none."""
    return _NAMES.get(dtype, str(dtype))


def kind_rank(dtype: np.dtype) -> int | None:
    """0 bool, 1 integer, 2 float: values may move up this ladder without loss of kind; None: not a number."""
    if dtype == DTYPES["bf16"]:
        return 2
    return {"b": 0, "i": 1, "u": 1, "f": 2}.get(dtype.kind)
