"""Image files to arrays. Pillow decodes what it knows, when it is installed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

try:  # only models that decode images need it
    from PIL import Image
except ModuleNotFoundError:
    Image = None  # type: ignore[assignment]

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
    if Image is None:
        raise ProblemError(Kind.UNSUPPORTED, "ImageDecoder needs Pillow", "pip install pillow")
    return Image.open(io.BytesIO(data))
