"""What the compiler did and why, as plain data for `explain()` (runtime/report.py shows it)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ingot.compiler.assembly import Assembly
from ingot.compiler.ir.graph import Graph
from ingot.compiler.ir.types import dim_text

Report = dict[str, object]

SEPARATOR = "; "  # between the sources of one kernel


def build_report(graph: Graph, assembly: Assembly, fold_reasons: tuple[str, ...]) -> Report:
    sections = [_kernels(assembly), *_fusion(assembly), _memory(assembly)]
    if fold_reasons:
        sections.append({"title": "Constant folding", "rows": [[reason] for reason in fold_reasons]})
    return {"title": graph.name, "sections": sections}


def _kernels(assembly: Assembly) -> dict[str, object]:
    rows = []
    for k in assembly.kernels:
        decisions = ", ".join(f"{name}={value}" for name, value in k.decisions.items())
        rows.append([k.name, "+".join(k.ops), k.recipe, k.reason, decisions, SEPARATOR.join(k.sources)])
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


# --- sources of a cached report ---------------------------------------------------------------------
#
# A program is cached under what it computes, not under the lines it was written on. Its report is kept with
# numbers of values in place of their sources, and shown with the sources that the same values have now.


class KeptReport(Mapping[str, object]):
    """The report of a cached program: read when somebody looks at it, which few runs do."""

    def __init__(self, text: bytes, graph: Graph) -> None:
        self._text, self._graph = text, graph

    @cached_property
    def _report(self) -> Report:
        return with_sources(json.loads(self._text), self._graph)

    def __getitem__(self, name: str) -> object:
        return self._report[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._report)

    def __len__(self) -> int:
        return len(self._report)


def without_sources(report: Report, graph: Graph) -> Report:
    """The report with `@number` for each source of a value of the traced graph."""
    numbers: dict[str, str] = {}
    for number, source in enumerate(_sources(graph)):
        numbers.setdefault(source, f"@{number}")
    return _each_source(report, lambda source: numbers.get(source, source))


def with_sources(report: Report, graph: Graph) -> Report:
    """The inverse, for a graph that is the same but for its sources."""
    known = {f"@{number}": source for number, source in enumerate(_sources(graph))}
    return _each_source(report, lambda token: known.get(token, token))


def _sources(graph: Graph) -> Iterator[str]:
    for value in graph.body:
        yield str(value.source) if value.source else ""
        for region in getattr(value.op, "regions", ()):
            yield from _sources(region)


def _each_source(report: Report, change: Callable[[str], str]) -> Report:
    sections: Any = report["sections"]
    return {**report, "sections": [_changed(section, change) for section in sections]}


def _changed(section: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    if "from" not in section.get("columns", ()):
        return section
    place = section["columns"].index("from")

    def cell(text: str) -> str:
        whole = change(text)
        return whole if whole != text else SEPARATOR.join(map(change, text.split(SEPARATOR)))

    rows = [[cell(c) if n == place else c for n, c in enumerate(row)] for row in section["rows"]]
    return {**section, "rows": rows}
