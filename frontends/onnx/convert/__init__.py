"""The converters, one file per family of ops. Importing this package completes the registry."""

from ingot.frontends.onnx.convert import elementwise

FAMILIES = (elementwise,)
