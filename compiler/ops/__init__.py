"""The ops. Importing this package completes the registry `Op.registry`."""

from ingot.compiler.ops import (
    composite,
    contraction,
    control,
    elementwise,
    indexing,
    movement,
    reduction,
    structure,
)

__all__ = [
    "composite",
    "contraction",
    "control",
    "elementwise",
    "indexing",
    "movement",
    "reduction",
    "structure",
]
