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
    if wanted == "Grayscale":
        return _decoded(data.tobytes(), "L")[:, :, None]
    pixels = _decoded(data.tobytes(), "RGB")
    return np.ascontiguousarray(pixels[:, :, ::-1]) if wanted == "BGR" else pixels


def _decoded(data: bytes, mode: str) -> np.ndarray:
    if Image is None:
        raise ProblemError(Kind.UNSUPPORTED, "ImageDecoder needs Pillow", "pip install pillow")
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's, for what is no image
        raise ProblemError(Kind.BAD_VALUE, f"ImageDecoder cannot read the {len(data)} bytes it is given: {error}") from None
