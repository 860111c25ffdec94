"""Ingot beside its peers: the same models, the same inputs, one process, one core, interleaved.

`python -m benchmarks --help` says how to run it; docs/performance.md says how to read it.
"""
