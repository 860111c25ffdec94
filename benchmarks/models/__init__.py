"""The models that are measured, once for Ingot, once for each library that cannot read ONNX, with equal weights."""
