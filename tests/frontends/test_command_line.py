"""The command line: what it prints, writes and refuses. Each command is called in this process."""

import numpy as np
import pytest

import ingot
from ingot.cli import main
from ingot.runtime.program import Program

SOURCE = """
from ingot import nn

nn.seed(0)
net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))

class Doubling(nn.Module):
    def forward(self, x):
        return x + x

def layer(x, w):
    return (x @ w).relu()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def succeed(capsys, *arguments):
    status = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def fail(capsys, *arguments):
    assert main([str(a) for a in arguments]) == 1
    return capsys.readouterr().err


NET = ("model.py:net", "--type", "f32[batch, 6]")


def test_run_reads_and_writes_arrays(folder, capsys):
    x = np.ones((3, 6), np.float32)
    np.save("x.npy", x)
    text = succeed(capsys, "run", *NET, "--input", "x=x.npy", "--output-dir", "results")
    assert text.startswith("output: f32[batch, 2]: [[")
    assert np.load("results/output.npy").shape == (3, 2)


def test_run_makes_up_what_it_is_not_given(folder, capsys):
    once, again = (succeed(capsys, "run", *NET, "--dim", "batch=2") for _ in range(2))
    assert once == again


def test_a_function_that_builds_the_model_is_called(folder, capsys):
    np.save("x.npy", np.arange(3, dtype=np.float32))
    text = succeed(capsys, "run", "model.py:Doubling", "--type", "f32[3]", "--input", "x=x.npy")
    assert "[0. 2. 4.]" in text


def test_a_function_of_tensors(folder, capsys):
    assert "f32[2, 3]" in succeed(capsys, "run", "model.py:layer", "--type", "f32[2, 6]", "--type", "f32[6, 3]")


def test_compile_then_run_the_program(folder, capsys):
    assert "wrote model.ingot" in succeed(capsys, "compile", *NET)
    direct, saved = (succeed(capsys, "run", *model, "--dim", "batch=2") for model in (NET, ("model.ingot",)))
    assert direct == saved
    assert "ingot: best" in succeed(capsys, "bench", "model.ingot", "--seconds", "0.01")


def test_compile_for_another_machine(folder, capsys):
    assert "wrote arm.ingot" in succeed(capsys, "compile", *NET, "--target", "aarch64", "-o", "arm.ingot")
    program = Program.load("arm.ingot")
    assert program.manifest.target.triple.startswith("aarch64")


def test_every_dumped_graph_can_be_resumed(folder, capsys):
    succeed(capsys, "compile", *NET, "--dump-ir", "stages")
    expected = succeed(capsys, "run", *NET, "--dim", "batch=2")
    graphs = sorted((folder / "stages").glob("*.graph"))
    assert len(graphs) > 5
    for path in (graphs[0], graphs[len(graphs) // 2], graphs[-1]):
        assert succeed(capsys, "run", path, "--dim", "batch=2") == expected, path.name


def test_an_edited_dump_changes_the_program(folder, capsys):
    succeed(capsys, "compile", "model.py:layer", "--type", "f32[2, 2]", "--type", "f32[2, 2]", "--dump-ir", "stages")
    path = folder / "stages" / "00-import.graph"
    path.write_text(path.read_text().replace("relu(", "neg("))
    np.save("x.npy", np.eye(2, dtype=np.float32))
    text = succeed(capsys, "run", path, "--input", "x=x.npy", "--input", "w=x.npy")
    assert "[[-1." in text


def test_bisect_finds_nothing_to_blame(folder, capsys):
    text = succeed(capsys, "run", *NET, "--bisect")
    assert "agree with the NumPy interpreter" in text


def test_explain_in_three_forms(folder, capsys):
    text = succeed(capsys, "explain", *NET)
    assert "Fusion decisions" in text
    assert "sys.exit" not in text  # the command line itself is no place in the user's program
    assert '"title": "Memory"' in succeed(capsys, "explain", *NET, "--json")
    succeed(capsys, "explain", *NET, "--html", "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_targets_are_listed(capsys):
    text = succeed(capsys, "targets")
    assert [line.split()[0] for line in text.splitlines()][:2] == ["native", "x86-64"]


TRAINING = """
import numpy as np
import ingot
from ingot import data, nn, optim

def setup():
    x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    trainer = ingot.Trainer(nn.Linear(1, 1), lambda m, x, y: nn.mse(m(x), y), optim.SGD(0.1), x[:8], x[:8])
    return trainer, data.Batches(x, 3 * x, size=8, epochs=4)
"""


def test_train_and_resume(folder, capsys):
    (folder / "training.py").write_text(TRAINING)
    assert "32 steps, loss" in succeed(capsys, "train", "training.py:setup", "-o", "run.ckpt")
    succeed(capsys, "train", "training.py:setup", "--resume", "run.ckpt", "-o", "more.ckpt")
    assert "returns (trainer, batches)" in fail(capsys, "train", "model.py:Doubling")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.py:net"], "no file nowhere.py"),
        (["run", "model.py:missing"], "has no missing"),
        (["run", "model.txt"], "model.onnx, program.ingot"),
        (["run", "model.py:net"], "--type"),
        (["run", "model.py:net", "--type", "float[3]"], "'float[3]' is not a type"),
        (["run", *NET, "--input", "x"], "name=file.npy"),
        (["run", *NET, "--dim", "batch"], "batch=8"),
        (["run", *NET, "--target", "vax"], "E115"),
        (["run", "model.py:net", "--type", "f32[batch, 7]"], "E101"),
        (["bench", *NET, "--against", "torch"], "onnxruntime"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:3]),
)
def test_mistakes_are_named(folder, capsys, arguments, words):
    assert words in fail(capsys, *arguments)


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == ingot.__version__
