"""ONNX in and out: load_onnx, check_onnx, save_onnx, and the standard backend interface (backend.py)."""

from ingot.frontends.onnx.doctor import check_onnx
from ingot.frontends.onnx.exporter import save_onnx, to_onnx
from ingot.frontends.onnx.loading import load_onnx
from ingot.frontends.onnx.model import OnnxModule
from ingot.frontends.onnx.problems import OnnxError, Problem

__all__ = ["OnnxError", "OnnxModule", "Problem", "check_onnx", "load_onnx", "save_onnx", "to_onnx"]
