"""Results as tables: on the terminal, and as Markdown for the documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import plot
from benchmarks.results import OURS, Contender, Result, Suite, geometric_mean, is_ours

TITLES = {
    "inference": "Inference, float32, milliseconds (best call)",
    "training": "Training step, float32, milliseconds (best call)",
    "batch": "Inference by batch size, milliseconds (best call)",
    "threads": "Threads",
    "gemm": "Matrix product [m, k] @ [k, n] as m x n x k, GF/s (best call)",
    "quantised": "Inference with 8-bit weights and activations, milliseconds (best call)",
    "int8": "Integer product of u8[m, k] and i8[k, n] as m x n x k, Gop/s (best call)",
    "conv": "Convolution, batch 1, GF/s (best call; Winograd counts the operations it saves)",
    "stream": "Memory-bound functions of 64 MiB, milliseconds (best call)",
    "compile": "Compile time",
    "memory": "Memory of a training step beyond parameters and optimiser state",
    "overhead": "A call that computes almost nothing, microseconds (best)",
}
RATES = ("gemm", "int8", "conv")
MICROSECONDS = ("overhead",)
PLOTTED = ("inference", "training", "conv")


def shown(seconds: float, suite: str, operations: float) -> str:
    if suite in RATES:
        return f"{operations / seconds / 1e9:.1f}"
    return f"{seconds * 1e6:.2f}" if suite in MICROSECONDS else figures(1000 * seconds)


def figures(number: float) -> str:
    """Three significant figures, without an exponent."""
    decimals = 0 if number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 3 if number >= 0.1 else 4
    return f"{number:.{decimals}f}"


def race_table(suite: Suite) -> tuple[list[str], list[list[str]]]:
    names = _contender_names(suite)
    shares = any(row.limit for row in suite.rows)
    header = ["", *names, f"{OURS} median", "ratio", "median ratio"]
    medians = any(row.limit_median for row in suite.rows)
    header += ["of limit", *(["of limit, medians"] if medians else []), "limit"] if shares else []
    header += ["error"]
    body = []
    for row in suite.rows:
        cells = [row.title, *(_cell(row, name, suite.name) for name in names)]
        cells.append(shown(row.ours.median, suite.name, row.operations) if row.ours else "")
        cells += [f"{ratio:.2f}" if ratio is not None else "" for ratio in (row.ratio, row.median_ratio)]
        if shares:
            found = [row.share, *([row.median_share] if medians else [])]
            cells += [*(f"{100 * share:.0f} %" if share is not None else "" for share in found), row.limited_by]
        cells.append(_error(row.contenders.get(OURS)))
        body.append(cells)
    return header, body


def _contender_names(suite: Suite) -> list[str]:
    names = dict.fromkeys(name for row in suite.rows for name in row.contenders)
    return [*(n for n in names if not is_ours(n)), *(n for n in names if is_ours(n))]


def _cell(row: Result, name: str, suite: str) -> str:
    found = row.contenders.get(name)
    if found is None:
        return ""
    if not found.ran:
        return "wrong" if found.failure.startswith("wrong") else "fails" if is_ours(name) else "–"
    text = shown(found.best, suite, row.operations)
    best = row.best_peer
    return f"**{text}**" if best and best[0] == name else text


def _error(found: Contender | None) -> str:
    return f"{found.error:.1e}" if found and found.error is not None else ""


def value_table(suite: Suite) -> tuple[list[str], list[list[str]]]:
    columns = list(dict.fromkeys(name for row in suite.rows for name in row.values))
    body = []
    for row in suite.rows:
        values = [row.values.get(name) for name in columns]
        body.append([row.title, *(_value(v) for v in values)])
    return ["", *columns], body


def _value(value: object) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, str | int) else figures(float(value))  # type: ignore[arg-type]


def table_of(suite: Suite) -> tuple[list[str], list[list[str]]]:
    return race_table(suite) if any(row.contenders for row in suite.rows) else value_table(suite)


def summary(suite: Suite) -> str:
    """The numbers that promises are made in."""
    ratios = suite.ratios
    if not ratios:
        return ""
    mean = geometric_mean(ratios)
    slowest = min((row for row in suite.rows if row.ratio is not None), key=lambda row: row.ratio or 0)
    missing = len(suite.rows) - len(ratios)
    text = f"Geometric mean of the ratios to the best peer: {mean:.2f} over {len(ratios)} rows; "
    text += f"lowest {slowest.ratio:.2f} ({slowest.title})."
    text += f" To each: {', '.join(f'{name} {mean:.2f}' for name, mean in means(suite).items())}."
    return text + (f" {missing} without a ratio." if missing else "")


def means(suite: Suite) -> dict[str, float]:
    """The geometric mean of the ratios to each peer, over the rows in which both ran."""
    found: dict[str, list[float]] = {}
    for row in suite.rows:
        if row.ours:
            for name, peer in row.peers.items():
                found.setdefault(name, []).append(peer.best / row.ours.best)
    return {name: geometric_mean(ratios) or 0.0 for name, ratios in found.items()}


def failures(suite: Suite) -> list[str]:
    """What did not run, of Ingot's."""
    found = []
    for row in suite.rows:
        if row.failure:
            found.append(f"{row.title}: {row.failure}")
        ours = {name: c.failure for name, c in row.contenders.items() if c.failure and is_ours(name)}
        found += [f"{row.title}: {name}: {failure}" for name, failure in ours.items()]
    return found


def missing(suite: Suite) -> str:
    names = [name for name, version in suite.versions.items() if version == "not installed"]
    return f"Not installed: {', '.join(names)}." if names else ""


def describe_machine(suite: Suite) -> str:
    levels = ", ".join(
        f"{level['where']} {level['read']:.0f} (copy {level['copy']:.0f})" for level in suite.machine.get("levels", ())
    )
    versions = ", ".join(f"{name} {version}" for name, version in suite.versions.items())
    return (
        f"{suite.machine.get('name', '')}; {suite.threads} thread{'s' * (suite.threads > 1)}; "
        f"FMA peak {suite.machine.get('fma', 0):.1f} GF/s a core; read GB/s: {levels}. {versions}. {suite.date}."
    )


# --- where it goes --------------------------------------------------------------------------------


def show(suite: Suite, console: Console) -> None:
    header, body = table_of(suite)
    table = Table(title=escape(TITLES[suite.name]), title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for cells in body:
        table.add_row(*(_rich(cell) for cell in cells))
    console.print(table)
    for line in filter(None, [summary(suite), *failures(suite), missing(suite)]):
        console.print(line, markup=False)


def _rich(cell: str) -> str:
    if cell.startswith("**"):
        return f"[bold]{cell.strip('*')}[/bold]"
    return f"[red]{cell}[/red]" if cell in ("wrong", "fails", "DIFFERENT") else cell


def markdown(suite: Suite) -> str:
    header, body = table_of(suite)
    lines = [f"## {TITLES[suite.name]}", "", describe_machine(suite), ""]
    lines += [_line(header), _line(["---"] * len(header)), *map(_line, body), ""]
    lines += [text for text in (summary(suite),) if text]
    lines += [f"- {text}" for text in failures(suite)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def write(suite: Suite, folder: Path) -> None:
    """JSON, Markdown and a plot of one suite, then the page of all suites that the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / f"{suite.name}.json", json.dumps(suite.to_json(), indent=1) + "\n")
    if suite.name in PLOTTED and suite.ratios:
        replace_file(folder / f"{suite.name}.svg", plot.svg(suite, TITLES[suite.name].partition(",")[0]))
    found = [Suite.from_json(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    order: Callable[[Suite], int] = lambda s: list(TITLES).index(s.name)  # noqa: E731
    replace_file(folder / "README.md", "# Measured\n\n" + "\n".join(markdown(s) for s in sorted(found, key=order)))


def replace_file(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)
