"""What the compiler did and why, as plain data for `explain()` (runtime/report.py shows it)."""

from __future__ import annotations

from ingot.compiler.assembly import Assembly
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.types import dim_text


def build_report(graph: Graph, assembly: Assembly, fold_reasons: tuple[str, ...]) -> dict[str, object]:
    sections = [_kernels(assembly), *_fusion(assembly), _memory(assembly)]
    if fold_reasons:
        sections.append({"title": "Constant folding", "rows": [[reason] for reason in fold_reasons]})
    return {"title": graph.name, "sections": sections}


def _kernels(assembly: Assembly) -> dict[str, object]:
    rows = []
    for k in assembly.kernels:
        decisions = ", ".join(f"{name}={value}" for name, value in k.decisions.items())
        rows.append([k.name, "+".join(k.ops), k.recipe, k.reason, decisions, "; ".join(k.sources)])
    return {
        "title": f"Kernels ({len(rows)})",
        "columns": ["kernel", "ops", "recipe", "why", "decisions", "from"],
        "rows": rows,
    }


def _fusion(assembly: Assembly) -> list[dict[str, object]]:
    sections: list[dict[str, object]] = []
    for name, plan in assembly.plans:
        rows = []
        for d in plan.decisions:
            op = getattr(d.value.op, "name", "input")
            source = str(d.value.source) if d.value.source else ""
            rows.append([op, repr(d.value.type), d.choice, d.reason, d.kernel, source])
        title = f"Fusion decisions of {name}"
        sections.append({"title": title, "columns": ["op", "type", "choice", "why", "where", "from"], "rows": rows})
    return sections


def _memory(assembly: Assembly) -> dict[str, object]:
    rows = [["arena", f"{dim_text(assembly.arena_bytes)} bytes"]]
    for polynomial, placed in assembly.arena.placements.items():
        scale = "" if polynomial == "1" else f" for each {polynomial}"
        rows.append(["class", f"{placed.total} bytes{scale}; no plan can use less than {placed.lower_bound}"])
    rows += [["note", note] for note in assembly.memory_notes]
    return {"title": "Memory", "columns": ["what", "how"], "rows": rows}
