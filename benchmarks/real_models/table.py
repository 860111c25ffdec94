"""What was found, as a line of the terminal and as a page of the documentation."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence

import onnxruntime

from benchmarks.real_models.compare import Comparison


def line(result: Comparison) -> str:
    if result.failure:
        return f"{result.model:45} FAILED: {result.failure}"
    verdict = "" if result.agrees else "  WRONG"
    return (
        f"{result.model:45} {result.nodes:5} nodes, compiled in {result.compile_seconds:6.2f} s, "
        f"{1e3 * result.ingot_seconds:9.3f} ms, peer {1e3 * result.peer_seconds:9.3f} ms, "
        f"ratio {result.ratio:5.2f}, error {result.error:.1e}{verdict}"
        + (f", {result.host_nodes} on the host" if result.host_nodes else "")
    )


def page(found: Sequence[Comparison], busy: bool) -> str:
    """The table in Markdown, with what it was measured on."""
    agreeing = [result for result in found if result.agrees]
    ratios = [result.ratio for result in agreeing]
    clock = "processor time, on a machine that others used" if busy else "time that passed"
    load = os.getloadavg()[0]
    lines = [
        f"{len(agreeing)} of {len(found)} models agree with ONNX Runtime {onnxruntime.__version__}. Median of the ratios "
        f"{statistics.median(ratios) if ratios else 0:.2f}; above 1 Ingot is faster. Both with one thread, in turns, best call; "
        f"{clock}; {platform.machine()}, load {load:.1f} at the end.",
        "",
        "| model | nodes | compile s | Ingot ms | ORT ms | ratio | error | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for result in found:
        if result.failure:
            lines.append(f"| {result.model} | | | | | | | {result.failure} |")
            continue
        note = "" if result.agrees else "differs"
        if result.host_nodes:
            note = ", ".join(filter(None, (note, f"{result.host_nodes} nodes on the host")))
        lines.append(
            f"| {result.model} | {result.nodes} | {result.compile_seconds:.2f} | {1e3 * result.ingot_seconds:.3f} | "
            f"{1e3 * result.peer_seconds:.3f} | {result.ratio:.2f} | {result.error:.0e} | {note} |"
        )
    return "\n".join(lines) + "\n"
