"""The ops. Importing this package completes the registry `Op.registry`."""

from ingot.compiler.ops import (
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
    reduction,
    structure,
)

__all__ = [
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
    "reduction",
    "structure",
]
