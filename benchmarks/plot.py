"""A plot of a suite as SVG text: for each row a bar of Ingot's speed and a dot for each peer, the best peer being 1."""

from __future__ import annotations

from html import escape

from benchmarks.results import Result, Suite

_LABEL, _CHART, _RIGHT = 330, 520, 60
_ROW, _TOP, _BOTTOM = 26, 74, 34
_COLOURS = ("#d97706", "#2563eb", "#9333ea", "#0d9488", "#be123c", "#64748b")
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-size: 16px; font-weight: 600; } .small { font-size: 11px; }
.bar { fill: #15803d; }
.dot { stroke: #fff; stroke-width: .7; } .grid { stroke: #d0d7de; } .one { stroke: #57606a; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .grid { stroke: #30363d; } .one { stroke: #8d96a0; } .bar { fill: #2ea043; }
}
"""


def svg(suite: Suite, title: str) -> str:
    rows = [row for row in suite.rows if row.ratio is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    largest = max([1.25, *(row.ratio or 0 for row in rows)]) * 1.05
    scale = _CHART / largest
    height = _TOP + _ROW * len(rows) + _BOTTOM
    width = _LABEL + _CHART + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="8" y="22">{escape(title)}: speed relative to the best peer</text>',
        *_legend(names),
        *_grid(largest, scale, height),
    ]
    for number, row in enumerate(rows):
        parts += _row(row, names, _TOP + number * _ROW, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(names: list[str]) -> list[str]:
    found = ['<rect class="bar" x="8" y="36" width="12" height="12"/>', '<text x="25" y="47">Ingot</text>']
    x = 80
    for name, colour in zip(names, _COLOURS, strict=False):
        found.append(f'<circle cx="{x}" cy="42" r="5" fill="{colour}"/><text x="{x + 10}" y="47">{escape(name)}</text>')
        x += 34 + 8 * len(name)
    return found


def _grid(largest: float, scale: float, height: int) -> list[str]:
    step = next(s for s in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 1e9) if largest / s <= 8)
    found = []
    for number in range(int(largest / step) + 1):
        value = number * step
        x = _LABEL + value * scale
        found.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - _BOTTOM}"/>')
        found.append(f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{height - 14}">{value:g}</text>')
    x = _LABEL + scale
    found.append(f'<line class="one" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - _BOTTOM}"/>')
    return found


def _row(row: Result, names: list[str], top: int, scale: float) -> list[str]:
    assert row.ratio is not None
    assert row.best_peer is not None
    best = row.best_peer[1].best
    length = row.ratio * scale
    middle = top + _ROW / 2 - 4
    found = [
        f'<text text-anchor="end" x="{_LABEL - 10}" y="{middle + 5:.0f}">{escape(row.title)}</text>',
        f'<rect class="bar" x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_ROW - 8}"/>',
    ]
    for name, colour in zip(names, _COLOURS, strict=False):
        peer = row.peers.get(name)
        if peer is not None:
            x = _LABEL + best / peer.best * scale
            found.append(f'<circle class="dot" cx="{x:.1f}" cy="{middle:.0f}" r="4.5" fill="{colour}"/>')
    end = max(length, scale) + 8
    found.append(f'<text class="small" x="{_LABEL + end:.1f}" y="{middle + 4:.0f}">{row.ratio:.2f}</text>')
    return found
