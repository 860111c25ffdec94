"""`python -m benchmarks` from start to end on one tiny row; no time is judged."""

import json

import pytest

from benchmarks.__main__ import arguments, main
from benchmarks.rows import SUITES


@pytest.mark.slow
def test_a_quick_run_writes_its_files(tmp_path, capsys):
    code = main(["gemm", "--rows", "7x13x101", "--quick", "--output", str(tmp_path)])
    assert code == 0, capsys.readouterr().out
    found = json.loads((tmp_path / "gemm.json").read_text())
    (row,) = found["rows"]
    assert row["contenders"]["Ingot"]["error"] < 1e-5
    assert row["contenders"]["NumPy (OpenBLAS)"]["best"] > 0
    assert found["machine"]["fma"] > 0
    assert [level["where"] for level in found["machine"]["levels"]] == ["L1", "L2", "L3", "memory"]
    assert "7x13x101" in (tmp_path / "README.md").read_text()


def test_rows_are_listed(capsys):
    assert main(["training", "--list"]) == 0
    assert capsys.readouterr().out.count("training") == len(SUITES["training"])


@pytest.mark.parametrize("given", [["speed"], ["gemm", "--rows", "nothing"]])
def test_what_does_not_exist_is_refused(given, capsys):
    with pytest.raises(SystemExit):
        arguments(given)
    assert "no such" in capsys.readouterr().err


def test_keys_name_one_row_each():
    for name, rows in SUITES.items():
        keys = [row.key for row in rows]
        assert len(set(keys)) == len(keys), name
