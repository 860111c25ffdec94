"""Image files to arrays. Pillow decodes what it knows, when it is installed."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from ingot.frontends.onnx.host import host_op
from ingot.frontends.onnx.problems import Kind, ProblemError


@host_op("ImageDecoder")
def image_decoder(call: Any, data: np.ndarray) -> np.ndarray:
    """[height, width, channels] of u8, in the wanted order of channels."""
    wanted = call.get("pixel_format", "RGB")
    image = _decoded(data.tobytes())
    if wanted == "Grayscale":
        return np.asarray(image.convert("L"))[:, :, None]
    pixels = np.asarray(image.convert("RGB"))
    return np.ascontiguousarray(pixels[:, :, ::-1]) if wanted == "BGR" else pixels


def _decoded(data: bytes) -> Any:
    try:
        pillow = importlib.import_module("PIL.Image")
    except ModuleNotFoundError:
        raise ProblemError(Kind.UNSUPPORTED, "ImageDecoder needs Pillow", "pip install pillow") from None
    return pillow.open(io.BytesIO(data))
