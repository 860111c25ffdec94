"""The converters, one file per family of ops. Importing this package completes the registry."""

from ingot.frontends.onnx.convert import (
    attention,
    classical,
    constants,
    control,
    convolution,
    elementwise,
    indexing,
    matrix,
    microsoft,
    microsoft_quantized,
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
    trees,
    types,
    vision,
)

FAMILIES = (attention, classical, constants, control, convolution, elementwise, indexing, matrix, microsoft, microsoft_quantized, movement, normalization, quantized, random, recurrent, reduction, resize, sequences,
            signal, training, trees, types, vision)
