"""The ops. Importing this package completes the registry `Op.registry`."""

from ingot.compiler.ops import (
    composite,
    contraction,
    control,
    convolution,
    elementwise,
    indexing,
    movement,
    ordering,
    reduction,
    structure,
)

__all__ = [
    "composite",
    "contraction",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "movement",
    "ordering",
    "reduction",
    "structure",
]
