"""The converters, one file per family of ops. Importing this package completes the registry."""

from ingot.frontends.onnx.convert import (
    constants,
    convolution,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    reduction,
)

FAMILIES = (constants, convolution, elementwise, indexing, matrix, movement, normalization, reduction)
