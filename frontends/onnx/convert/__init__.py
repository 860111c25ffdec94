"""The converters, one file per family of ops. Importing this package completes the registry."""

from ingot.frontends.onnx.convert import (
    constants,
    control,
    convolution,
    elementwise,
    indexing,
    matrix,
    movement,
    normalization,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    sequences,
    signal,
    training,
    types,
    vision,
)

FAMILIES = (constants, control, convolution, elementwise, indexing, matrix, movement, normalization, quantized, random, recurrent, reduction, resize, sequences,
            signal, training, types, vision)
