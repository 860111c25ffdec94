"""Evaluators of nodes that run on the host, one file per subject. Importing this package completes their registry."""

from ingot.frontends.onnx.hosted import classical, flow, images, movement, sizes, strings

SUBJECTS = (classical, flow, images, movement, sizes, strings)
