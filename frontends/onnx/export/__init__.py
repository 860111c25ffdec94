"""How ops are written as ONNX, one file per subject. Importing this package completes their registry."""

from ingot.frontends.onnx.export import compute, control, elementwise, movement

SUBJECTS = (compute, control, elementwise, movement)
