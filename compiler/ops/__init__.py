"""The ops. Importing this package completes the registry `Op.registry`."""

from ingot.compiler.ops import (
    attention,
    average_pooling,
    composite,
    contraction,
    control,
    convolution,
    elementwise,
    gradient,
    indexing,
    movement,
    normalization,
    ordering,
    pooling,
    random,
    reduction,
    structure,
)

__all__ = [
    "attention",
    "average_pooling",
    "composite",
    "contraction",
    "control",
    "convolution",
    "elementwise",
    "gradient",
    "indexing",
    "movement",
    "normalization",
    "ordering",
    "pooling",
    "random",
    "reduction",
    "structure",
]
