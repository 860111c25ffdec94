"""What the compiler has to say about a program, as text, JSON or one self-contained HTML page.

The compiler leaves `{"title": ..., "sections": [...]}` in the manifest; a section is
`{"title": ..., "text": ..., "columns": [...], "rows": [[...], ...]}`, all but the title optional.
"""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.runtime.manifest import Manifest
from ingot.runtime.storage import replacing

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color:
#222; } h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem .8rem .2rem 0;
vertical-align: top; } th { border-bottom: 1px solid #888; } td { border-bottom: 1px solid #eee;
font-family: ui-monospace, monospace; } pre { white-space: pre-wrap; }
"""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    sections: tuple[Section, ...]

    @staticmethod
    def of(manifest: Manifest, peak_bytes: int | None) -> Report:
        """The compiler's report, after a summary of the program itself."""
        written = manifest.report
        sections = written.get("sections")
        read = tuple(_section(item) for item in sections) if isinstance(sections, list) else ()
        return Report(str(written.get("title", "Program")), (_summary(manifest, peak_bytes), *read))

    def json(self) -> str:
        """The report as JSON text."""
        sections = [
            {
                "title": s.title,
                "text": s.text,
                "columns": list(s.columns),
                "rows": [list(row) for row in s.rows],
            }
            for s in self.sections
        ]
        return json.dumps({"title": self.title, "sections": sections}, indent=2)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page that needs nothing else."""
        body = "\n".join(_html_section(section) for section in self.sections)
        title = html.escape(self.title)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )
        with replacing(Path(path), durable=False) as file:
            file.write(page.encode())

    def __str__(self) -> str:
        return "\n\n".join([self.title, *(_text_section(section) for section in self.sections)])


def _summary(manifest: Manifest, peak_bytes: int | None) -> Section:
    weights = sum(spec.numpy_dtype.itemsize * _size(spec.shape) for spec in manifest.constants)
    rows = [
        *(("input", str(spec)) for spec in manifest.inputs),
        *(("state", str(spec)) for spec in manifest.states),
        *(
            (
                "output",
                f"{spec}" + (f" (updates {state})" if (state := manifest.aliases.get(spec.name)) else ""),
            )
            for spec in manifest.outputs
        ),
        *(("dim", str(dim)) for dim in manifest.dims),
        ("constants", f"{len(manifest.constants)} arrays, {weights} bytes"),
        ("scratch memory", "depends on unbounded dims" if peak_bytes is None else f"{peak_bytes} bytes"),
        ("kernels", str(len(manifest.kernels))),
        ("target", f"{manifest.target.triple} {manifest.target.cpu}".strip()),
    ]
    return Section("Program", rows=tuple(rows))


def _size(shape: tuple[int | str, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent if isinstance(extent, int) else 1
    return size


def _section(data: Any) -> Section:
    """Tolerant: a report is for people, and a newer compiler may say more."""
    if not isinstance(data, dict):
        return Section(str(data))
    rows = data.get("rows")
    columns = data.get("columns")
    return Section(
        title=str(data.get("title", "")),
        text=str(data.get("text", "")),
        columns=tuple(map(str, columns)) if isinstance(columns, list) else (),
        rows=tuple(_row(row) for row in rows) if isinstance(rows, list) else (),
    )


def _row(row: Any) -> tuple[str, ...]:
    return tuple(map(str, row)) if isinstance(row, list) else (str(row),)


def _text_section(section: Section) -> str:
    lines = [section.title, "-" * len(section.title)]
    if section.text:
        lines.append(section.text)
    table = [section.columns, *section.rows] if section.columns else list(section.rows)
    widths = [
        max(len(row[column]) for row in table if column < len(row))
        for column in range(max((len(row) for row in table), default=0))
    ]
    lines += ["  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in table]
    return "\n".join(lines)


def _html_section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<pre>{html.escape(section.text)}</pre>")
    if section.columns or section.rows:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in section.columns)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in section.rows)
        parts.append(f"<table>{f'<tr>{head}</tr>' if head else ''}\n{body}</table>")
    return "\n".join(parts)
