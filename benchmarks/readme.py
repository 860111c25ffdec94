"""The measured section of the project's README, from what a run of inference and training wrote.

    python -m benchmarks inference training --readme

Only what stands between the two marks is replaced; the plots go to docs/.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from benchmarks import plot, report
from benchmarks.results import OURS, Result, Suite, geometric_mean

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
HEADINGS = {"inference": "inference (batch)", "training": "training step (batch), optimiser"}
WITHOUT_WINOGRAD = f"{OURS}, no Winograd"
WIDTH = 130  # of a line of prose in the README


def update(readme: Path, folder: Path) -> None:
    """Writes the section into the README, and the plots beside the documentation."""
    suites = [Suite.from_json(json.loads((folder / f"{name}.json").read_text())) for name in HEADINGS]
    text = readme.read_text()
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{readme} has no {BEGIN} ... {END}")
    for suite in suites:
        report.replace_file(readme.parent / "docs" / f"{suite.name}.svg", plot.svg(suite, suite.name.capitalize()))
    report.replace_file(readme, f"{before}{BEGIN}\n{section(suites)}\n{END}{after}")


def section(suites: list[Suite]) -> str:
    """Tables of all suites, and what they amount to."""
    machine = suites[0].machine
    paragraphs = [
        _wrapped(
            f"One thread of an {machine['name']} core ({machine['cpu']}, vectors of {machine['vector_bits']} bits, "
            f"{machine['fma']:.0f} GF/s measured FMA peak), float32, milliseconds of the best call; all contenders in one "
            "process, taking turns. A ratio above 1 means that Ingot is faster than the best peer."
        ),
        *(f"![{suite.name.capitalize()}: speed relative to the best peer](docs/{suite.name}.svg)" for suite in suites),
        *map(_table, suites),
        _wrapped(" ".join(filter(None, (_means(suites), _versions(suites), _winograd(suites), _command(suites))))),
    ]
    return "\n\n".join(paragraphs)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(suite: Suite) -> str:
    lines = [f"| {HEADINGS[suite.name]} | best peer | {OURS} | ratio | of medians |", "|---|---|---|---|---|"]
    for row in suite.rows:
        if row.ours is None or row.best_peer is None:
            raise ValueError(f"{row.title}: {row.failure or 'not measured'}; the README shows complete runs only")
        name, peer = row.best_peer
        times = f"{report.figures(1e3 * peer.best)} ({name}) | {report.figures(1e3 * row.ours.best)}"
        lines.append(f"| {row.title} | {times} | **{row.ratio:.2f}** | {row.median_ratio:.2f} |")
    return "\n".join(lines)


def _means(suites: list[Suite]) -> str:
    found = []
    for suite in suites:
        peers = ", ".join(f"{name} {mean:.2f}" for name, mean in report.means(suite).items())
        found.append(f"{suite.name} {geometric_mean(suite.ratios):.2f} of the best peer for each model ({peers})")
    return f"Geometric means: {'; '.join(found)}."


def _versions(suites: list[Suite]) -> str:
    used = {name for suite in suites for row in suite.rows for name in row.peers}
    versions = (f"{name} {version}" for name, version in suites[0].versions.items() if name in used)
    compiled = any("torch.compile" in name for name in used)
    return f"{', '.join(versions)}{'' if compiled else '; torch without `torch.compile`'}."


def _winograd(suites: list[Suite]) -> str:
    def slower(row: Result) -> str:
        return f"{row.title} takes {report.figures(1e3 * row.contenders[WITHOUT_WINOGRAD].best)} ms"

    rows = [slower(row) for suite in suites for row in suite.rows if WITHOUT_WINOGRAD in row.contenders]
    return f"Winograd convolutions are on; without them {', '.join(rows)}." if rows else ""


def _command(suites: list[Suite]) -> str:
    return f"Measured by `python -m benchmarks {' '.join(suite.name for suite in suites)}`."
