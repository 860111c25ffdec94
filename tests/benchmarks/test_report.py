"""Results survive JSON and become tables and plots that say what the numbers say."""

import json
import math
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from benchmarks import plot, readme, report
from benchmarks.results import Contender, Result, Suite, geometric_mean

FAST = Result(
    "fast",
    "a fast row",
    {
        "torch": Contender(0.004, 0.005, 10, 1e-7),
        "ONNX Runtime": Contender(0.002, 0.0024, 10, 1e-7),
        "Ingot": Contender(0.001, 0.0012, 10, 2e-7),
        "Ingot, no Winograd": Contender(0.0015, 0.0016, 10, 1e-7),
        "JAX": Contender(failure="not written for it"),
    },
    limit=0.0009,
    limited_by="FMA",
    operations=9e7,
)
BROKEN = Result("broken", "a broken row", {"torch": Contender(0.004, 0.005), "Ingot": Contender(failure="TypeError")})


def suite(*rows: Result, name: str = "inference") -> Suite:
    return Suite(name, list(rows), {"name": "a machine", "fma": 100.0, "levels": []}, {"torch": "1.0"}, 1, "today")


def test_ratios_are_to_the_best_peer_and_variants_of_ours_are_no_peers():
    assert FAST.ratio == pytest.approx(2.0)
    assert FAST.median_ratio == pytest.approx(2.0)
    assert FAST.share == pytest.approx(0.9)
    assert set(FAST.peers) == {"torch", "ONNX Runtime"}
    assert BROKEN.ratio is None


def test_results_survive_json():
    text = json.dumps(suite(FAST, BROKEN).to_json(), allow_nan=False)
    found = Suite.from_json(json.loads(text))
    assert found.rows[0] == FAST
    assert math.isnan(found.rows[1].contenders["Ingot"].best)
    assert found.rows[1].contenders["Ingot"].failure == "TypeError"


def test_markdown_shows_times_ratio_and_failures():
    text = report.markdown(suite(FAST, BROKEN))
    assert "| a fast row | 4.00 | **2.00** | – | 1.00 | 1.50 | 1.20 | 2.00 | 2.00 | 90 % | FMA | 2.0e-07 |" in text
    assert "Geometric mean of the ratios to the best peer: 2.00 over 1 rows" in text
    assert "a broken row: Ingot: TypeError" in text


def test_a_limit_that_took_turns_is_compared_with_medians_too():
    row = Result("s", "a sum", {"Ingot": Contender(0.001, 0.002, 10)}, limit=0.0009, limit_median=0.0015, limited_by="memory read")
    header, (cells,) = report.race_table(suite(row, name="stream"))
    assert (cells[header.index("of limit")], cells[header.index("of limit, medians")]) == ("90 %", "75 %")
    assert "of limit, medians" not in report.race_table(suite(FAST))[0]


def test_rates_for_products():
    row = Result("p", "p", {"Ingot": FAST.contenders["Ingot"]}, operations=9e7)
    header, (cells,) = report.race_table(suite(row, name="gemm"))
    assert cells[header.index("Ingot")] == "90.0"


def test_rows_without_a_race_show_their_values():
    text = report.markdown(suite(Result("m", "memory", values={"arena MB": 1.5, "bits": "same"}), name="memory"))
    assert "| memory | 1.50 | same |" in text


def test_the_plot_is_well_formed_and_has_a_bar_for_each_ratio():
    root = ElementTree.fromstring(plot.svg(suite(FAST, BROKEN), "Inference & more"))
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in root.iter(f"{space}rect") if r.get("class") == "bar"]
    assert len(bars) == 1 + 1  # the legend's and one row's
    assert len([c for c in root.iter(f"{space}circle") if c.get("class") == "dot"]) == 2


def test_files_of_several_suites_make_one_page(tmp_path):
    report.write(suite(FAST), tmp_path)
    report.write(suite(FAST, name="training"), tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page.index("## Inference") < page.index("## Training")
    assert {"inference.json", "inference.svg", "training.json", "training.svg"} <= {p.name for p in tmp_path.iterdir()}


def test_the_terminal_shows_titles_with_brackets(capsys):
    report.show(suite(FAST, name="gemm"), Console(width=200))
    assert "[m, k] @ [k, n]" in capsys.readouterr().out


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_the_section_of_the_readme_is_replaced_and_nothing_else(tmp_path):
    machine = {"name": "A Core", "cpu": "some", "vector_bits": 256, "fma": 100.0, "levels": []}
    for name in ("inference", "training"):
        report.write(Suite(name, [FAST], machine, {"torch": "1.0", "ONNX Runtime": "2.0", "JAX": "3.0"}), tmp_path / "out")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text(f"above\n{readme.BEGIN}\nold\n{readme.END}\nbelow\n")
    readme.update(page, tmp_path / "out")
    text = page.read_text()
    assert text.startswith(f"above\n{readme.BEGIN}\n")
    assert text.endswith(f"\n{readme.END}\nbelow\n")
    assert "| a fast row | 2.00 (ONNX Runtime) | 1.00 | **2.00** | 2.00 |" in text
    assert "without them a fast row takes 1.50 ms" in text
    assert "JAX" not in text, "a peer that did not run has no version to tell"
    assert (tmp_path / "docs" / "training.svg").exists()


def test_a_readme_shows_complete_runs_only(tmp_path):
    machine = {"name": "A Core", "cpu": "some", "vector_bits": 256, "fma": 100.0, "levels": []}
    with pytest.raises(ValueError, match="a broken row"):
        readme.section([Suite("inference", [FAST, BROKEN], machine)])


def test_a_readme_without_marks_is_left_alone(tmp_path):
    for name in ("inference", "training"):
        report.write(suite(FAST, name=name), tmp_path)
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="benchmarks:begin"):
        readme.update(page, tmp_path)
    assert page.read_text() == "no marks"
