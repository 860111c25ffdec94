"""ONNX in and out: load_onnx, check_onnx, save_onnx, and the standard backend interface (backend.py)."""

from ingot.frontends.onnx.model import OnnxModule, load_onnx

__all__ = ["OnnxModule", "load_onnx"]
