"""The ops. Importing this package completes the registry `Op.registry`."""

from ingot.compiler.ops import composite, control, elementwise, movement, reduction, structure

__all__ = ["composite", "control", "elementwise", "movement", "reduction", "structure"]
