"""Stand-alone programs do what the process that built them does: the same bits, with no Python."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load_file

import ingot
from ingot import nn, optim
from ingot.cli import main as command_line
from ingot.compiler.errors import IngotError
from ingot.frontends.native import toolchain
from ingot.frontends.native.names import identifiers, text
from ingot.runtime import native

try:
    COMPILER = toolchain.find_toolchain(os.uname().machine).command
except IngotError:
    COMPILER = ()
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler is installed")

FEATURES, CLASSES, EXAMPLES, BATCH = 12, 3, 330, 32
LIBRARIES = ("linux-vdso", "libc", "libm", "libpthread", "ld-linux")
LARGEST_CODE = 500_000  # bytes of an executable beside its weights


class Net(nn.Module):
    """With what training has and inference has not: dropout, whose key is a state, and a running mean."""

    def __init__(self) -> None:
        nn.seed(0)
        self.first = nn.Linear(FEATURES, 16)
        self.norm = nn.BatchNorm(16)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.second(self.dropout(ingot.relu(self.norm(self.first(x)))))


def loss(model, x, y):
    scores = model(x)
    accuracy = (scores.argmax(axis=-1) == y).astype(ingot.f32).mean()
    return nn.cross_entropy(scores, y), {"accuracy": accuracy}


def make_trainer(batch: str | int = "batch"):
    return ingot.Trainer(Net(), loss, optim.Adam(1e-2), ingot.f32[batch, FEATURES], ingot.i64[batch])


def run(*command, good=True):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert (result.returncode == 0) == good, result.stdout + result.stderr
    return result.stdout if good else result.stderr


# --- running ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    paths = ingot.build(Net(), folder, ingot.f32["batch", FEATURES], name="net")
    assert [path.name for path in paths] == ["net.h", "libnet.a", "libnet.so", "net"]
    return folder


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(5).standard_normal((7, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(inputs):
    return ingot.compile(Net(), ingot.f32["batch", FEATURES])(inputs)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
def test_executable_gives_the_bits_of_the_process(model_folder, inputs, expected, threads, tmp_path):
    np.save(tmp_path / "x.npy", inputs)
    out = run(
        model_folder / "net", "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path, "--threads", threads
    )
    assert out.startswith(f"output: f32[7, {CLASSES}]")
    np.testing.assert_array_equal(np.load(tmp_path / "output.npy"), expected)


@needs_compiler
def test_executable_measures(model_folder, inputs, tmp_path):
    np.save(tmp_path / "x.npy", inputs)
    out = run(model_folder / "net", "--input", f"x={tmp_path / 'x.npy'}", "--benchmark", "0.01")
    assert re.match(r"best [\d.]+ ms, median [\d.]+ ms, \d+ runs", out)


@needs_compiler
@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((7, FEATURES)), "elements of type <f8, x is f32"),
        (np.zeros(7, np.float32), "has 1 axes"),
        (np.zeros((7, 5), np.float32), f"axis 1 of x .* has 5 elements, it should have {FEATURES}"),
        (np.zeros((0, FEATURES), np.float32), "batch is 0, outside the bounds"),
        (np.zeros((FEATURES, 7), np.float32).T, "Fortran order"),
    ],
)
def test_executable_refuses_what_does_not_fit(model_folder, array, message, tmp_path):
    np.save(tmp_path / "x.npy", array)
    assert re.search(message, run(model_folder / "net", "--input", f"x={tmp_path / 'x.npy'}", good=False))


@needs_compiler
@pytest.mark.parametrize("contents", [b"", b"\x93NUMPY", b"no array at all, but long enough to be one"])
def test_executable_refuses_damaged_files(model_folder, contents, tmp_path):
    (tmp_path / "x.npy").write_bytes(contents)
    error = run(model_folder / "net", "--input", f"x={tmp_path / 'x.npy'}", good=False)
    assert "is no .npy file" in error


@needs_compiler
def test_executable_names_what_is_missing_or_unknown(model_folder):
    assert "input x (f32[batch, 12]) is missing" in run(model_folder / "net", good=False)
    assert "there is no option --inptu" in run(model_folder / "net", "--inptu", good=False)
    assert "with the name of an input" in run(model_folder / "net", "--input", "z=z.npy", good=False)
    assert f"output: f32[batch, {CLASSES}]" in run(model_folder / "net", "--help")


@needs_compiler
def test_shared_library_is_called_from_another_language(model_folder, inputs, expected):
    library = ctypes.CDLL(str(model_folder / "libnet.so"))
    library.net_error.restype = ctypes.c_char_p
    library.net_arena_bytes.restype = ctypes.c_int64
    found = np.empty_like(expected)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (inputs, found)]
    assert library.net_run(*pointers, ctypes.c_int64(7), None, None) == 0
    np.testing.assert_array_equal(found, expected)
    assert library.net_run(*pointers, ctypes.c_int64(0), None, None) == -1
    assert b"batch is 0" in library.net_error()
    executable = ingot.compile(Net(), ingot.f32["batch", FEATURES])
    assert library.net_arena_bytes(ctypes.c_int64(7)) == executable.peak_bytes_for(batch=7)


TWO_PROGRAMS = """
#include "first.h"
#include "second.h"
#include <stdio.h>
int main(void) {
    float x[4] = {1, 2, 3, 4}, y[4];
    int64_t extents[FIRST_EXTENT_COUNT];
    first_threads *threads = first_threads_create(2);
    if (first_run(x, y, 0, threads) || second_run(y, y + 2, 0, 0) != 0) return 1;
    first_shapes(extents);
    first_threads_destroy(threads);
    printf("%g %g %g %g %d\\n", y[0], y[1], y[2], y[3], (int)extents[0]);
    return 0;
}
"""


@needs_compiler
def test_two_static_libraries_fit_into_one_program(tmp_path):
    """Also: the headers are C, and a model without weights or dims builds."""
    ingot.build(lambda x: x[:2] + x[2:], tmp_path, ingot.f32[4], name="first")
    ingot.build(lambda x: x * 2, tmp_path, ingot.f32[2], name="second")
    (tmp_path / "main.c").write_text(TWO_PROGRAMS)
    libraries = ["libfirst.a", "libsecond.a", "-lm", "-lpthread"]
    command = ["-std=c99", "-Wall", "-Werror", "-pedantic", "main.c", *libraries, "-o", "both"]
    subprocess.run([*COMPILER, *command], cwd=tmp_path, check=True)
    assert run(tmp_path / "both") == "4 6 8 12 4\n"


@needs_compiler
def test_an_onnx_model_keeps_its_names(tmp_path):
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], np.arange(6, dtype=np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["in:0", "w"], ["scores/out"])],
        "small",
        [helper.make_tensor_value_info("in:0", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("scores/out", TensorProto.FLOAT, ["N", 2])],
        [weight],
    )
    model = ingot.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    ingot.build(model, tmp_path)
    assert "int model_run(const float *in_0, float *scores_out, int64_t N," in (tmp_path / "model.h").read_text()
    x = np.ones((4, 3), np.float32)
    np.save(tmp_path / "x.npy", x)
    run(tmp_path / "model", "--input", f"in:0={tmp_path / 'x.npy'}", "--output-dir", tmp_path)
    np.testing.assert_array_equal(
        np.load(tmp_path / "scores_out.npy"), x @ np.arange(6, dtype=np.float32).reshape(3, 2)
    )


@needs_compiler
def test_failures_at_run_time_are_told(tmp_path):
    ingot.build(lambda table, rows: table[rows], tmp_path, ingot.f32[3, 2], ingot.i64["n"])
    np.save(tmp_path / "table.npy", np.zeros((3, 2), np.float32))
    np.save(tmp_path / "rows.npy", np.array([0, 7]))
    files = [part for n in ("table", "rows") for part in ("--input", f"{n}={tmp_path / n}.npy")]
    assert "index 7 is out of range for an axis of extent 3" in run(tmp_path / "model", *files, good=False)


# --- training -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(11)
    x = rng.standard_normal((EXAMPLES, FEATURES)).astype(np.float32)
    y = (x[:, :CLASSES]).argmax(axis=1).astype(np.int64)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return folder, x, y


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    ingot.build(make_trainer(), folder)
    return folder / "train"


def training(executable, data, *options):
    files = [part for n in ("x", "y") for part in ("--data", f"{n}={data[0] / n}.npy")]
    return [executable, *files, "--batch", str(BATCH), *map(str, options)]


@pytest.fixture(scope="module")
def trainer():
    return make_trainer()


@pytest.fixture(scope="module")
def initial(trainer):
    return {name: array.copy() for name, array in trainer.states.items()}


@pytest.fixture
def in_process(trainer, initial, data):
    """Train in this process, from the start; the trainer and its losses."""

    def fit(epochs, seed=0):
        for name, array in initial.items():
            trainer.states[name][...] = array
        return trainer, trainer.fit(ingot.data.Batches(data[1], data[2], size=BATCH, epochs=epochs, seed=seed))

    return fit


def assert_same_states(trainer, path):
    found = load_file(path)
    assert found.keys() == trainer.states.keys()
    for name, array in trainer.states.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


def printed_losses(out):
    return np.array([float(found) for found in re.findall(r" loss (\S+)", out)], np.float32)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_training_gives_the_bits_of_the_process(train, data, in_process, threads, tmp_path):
    """110 steps, the last batch of each epoch smaller than the others."""
    out = run(
        *training(train, data, "--epochs", 10, "--seed", 3, "--log", 1, "--output", tmp_path / "run.ckpt"),
        "--threads",
        threads,
    )
    trainer, losses = in_process(10, 3)
    np.testing.assert_array_equal(printed_losses(out), np.float32(losses))
    assert len(losses) == 110
    assert "accuracy" in out
    assert_same_states(trainer, tmp_path / "run.ckpt")


@needs_compiler
def test_resuming_is_exact(train, data, in_process, tmp_path):
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    run(*training(train, data, "--epochs", 4, "--steps", 17, "--output", first))
    run(*training(train, data, "--epochs", 4, "--resume", first, "--output", second))
    assert_same_states(in_process(4)[0], second)


@needs_compiler
def test_a_killed_run_leaves_a_whole_checkpoint(train, data, in_process, tmp_path):
    path = tmp_path / "run.ckpt"
    epochs = 400
    process = subprocess.Popen(training(train, data, "--epochs", epochs, "--save", 1, "--output", path))
    while not path.exists():
        time.sleep(0.002)
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = int(load_file(path)["optimizer.count"])
    assert 0 < done < epochs * 11
    wanted = -(-done // 11) + 1
    run(*training(train, data, "--epochs", wanted, "--resume", path, "--output", path))
    assert_same_states(in_process(wanted)[0], path)


@needs_compiler
def test_checkpoints_go_both_ways(train, data, in_process, tmp_path):
    """Two epochs in the process, two in the executable."""
    trainer, _ = in_process(2)
    trainer.save(tmp_path / "python.ckpt")
    run(*training(train, data, "--epochs", 4, "--resume", tmp_path / "python.ckpt", "--output", tmp_path / "c.ckpt"))
    trained, _ = in_process(4)
    assert_same_states(trained, tmp_path / "c.ckpt")
    expected = {name: array.copy() for name, array in trained.states.items()}
    trained, _ = in_process(1)
    trained.load(tmp_path / "c.ckpt")
    for name, array in trained.states.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@needs_compiler
def test_checkpoints_that_do_not_fit_are_refused(train, data, tmp_path):
    path = tmp_path / "run.ckpt"
    run(*training(train, data, "--steps", 1, "--output", path))
    assert "was made with seed 0" in run(*training(train, data, "--seed", 1, "--resume", path), good=False)
    other = ingot.Trainer(Net(), loss, optim.SGD(0.1), ingot.f32["batch", FEATURES], ingot.i64["batch"])
    other.save(tmp_path / "other.ckpt")
    assert "has no tensor" in run(*training(train, data, "--resume", tmp_path / "other.ckpt"), good=False)
    whole = path.read_bytes()
    for damaged in (b"", whole[:7], whole[:100], whole[:-1], b"\xff" * 64):
        path.write_bytes(damaged)
        assert "damaged" in run(*training(train, data, "--resume", path), good=False)


@needs_compiler
def test_a_fixed_batch_size_is_kept(data, tmp_path):
    ingot.build(make_trainer(BATCH), tmp_path)
    command = training(tmp_path / "train", data, "--epochs", 2, "--log", 1)
    assert "say --drop-last" in run(*command, good=False)
    out = run(*command, "--drop-last", "--no-shuffle")
    batches = ingot.data.Batches(data[1], data[2], size=BATCH, epochs=2, shuffle=False, drop_last=True)
    np.testing.assert_array_equal(printed_losses(out), np.float32(make_trainer(BATCH).fit(batches)))
    assert f"for batches of {BATCH}" in run(*command, "--batch", 16, good=False)


@needs_compiler
def test_the_executable_is_small_and_needs_the_c_library_only(train, trainer):
    weights = sum(array.nbytes for array in trainer.states.values())
    assert train.stat().st_size <= LARGEST_CODE + weights
    if shutil.which("ldd"):
        needed = [line.split()[0] for line in run("ldd", train).splitlines()]
        assert all(Path(name).name.startswith(LIBRARIES) for name in needed), needed


DRAW = """
#include "ingot_program.h"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    uint32_t length = (uint32_t)atol(arguments[2]), *order = malloc(4 * (size_t)length + 4);
    number_generator generator = seeded_generator(strtoull(arguments[1], NULL, 10));
    for (int epoch = 0; epoch < 3 && count == 3; epoch++) {
        next_permutation(&generator, order, length);
        for (uint32_t n = 0; n < length; n++) printf("%u ", (unsigned)order[n]);
    }
    return 0;
}
"""


@needs_compiler
def test_the_order_of_examples_is_numpys(tmp_path):
    (tmp_path / "draw.c").write_text(DRAW)
    command = ["-std=c99", "draw.c", str(native.FOLDER / "order.c"), f"-I{native.FOLDER}", "-o", "draw"]
    subprocess.run([*COMPILER, *command], cwd=tmp_path, check=True)
    for seed in (0, 1, 2**31, 2**32, 2**63 - 1):
        for count in (0, 1, 2, 3, 64, 65, 1000):
            generator = np.random.default_rng(seed)
            wanted = np.concatenate([generator.permutation(count) for _ in range(3)])
            assert run(tmp_path / "draw", seed, count).split() == [str(n) for n in wanted]


# --- building -------------------------------------------------------------------------------------------------


def raised(code, *arguments, **options):
    with pytest.raises(IngotError) as caught:
        ingot.build(*arguments, **options)
    assert caught.value.code.id == code
    return str(caught.value)


def test_e160_without_a_compiler_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    message = raised("E160", lambda x: x + x, tmp_path, ingot.f32[2])
    assert "pip install ziglang" in message
    assert raised("E160", lambda x: x + x, tmp_path, ingot.f32[2], compiler="no-such-cc").count("no-such-cc") == 1
    assert not list(tmp_path.iterdir())


def test_the_wheels_compiler_is_used_where_the_system_has_none(monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: object())
    found = toolchain.find_toolchain("x86_64")
    assert found.command == (sys.executable, "-m", "ziglang", "cc")
    assert found.flags == ("-target", "x86_64-linux-gnu")


@needs_compiler
def test_e161_a_compiler_that_fails_is_quoted(tmp_path):
    message = raised("E161", lambda x: x + x, tmp_path, ingot.f32[2], compiler=f"{shutil.which('cc') or 'cc'} --wrong")
    assert "--wrong" in message


@pytest.mark.parametrize("name", ["two words", "a/b", "9lives", "int", "ingot_x"])
def test_e161_names_that_c_cannot_have(name, tmp_path):
    assert "cannot be a prefix" in raised("E161", lambda x: x + x, tmp_path, ingot.f32[2], name=name)


def test_e161_arguments_that_are_no_batches(tmp_path):
    trainer = ingot.Trainer(
        nn.Linear(2, 1), lambda m, x, rate: (m(x) * rate).mean(), optim.SGD(0.1), ingot.f32[4, 2], ingot.f32[()]
    )
    assert "first axis" in raised("E161", trainer, tmp_path)


def test_a_trainer_takes_no_types(trainer, tmp_path):
    assert "knows the types" in raised("E107", trainer, tmp_path, ingot.f32[2])


@needs_compiler
def test_a_build_depends_on_its_inputs_only(tmp_path):
    for folder in ("a", "b"):
        ingot.build(Net(), tmp_path / folder, ingot.f32["batch", FEATURES])
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


TRAINING = """
import ingot

def loss(model, x):
    return (model(x) ** 2).mean()

def make():
    return ingot.Trainer(ingot.nn.Linear(2, 1), loss, ingot.optim.SGD(0.1), ingot.f32["n", 2])
"""


@needs_compiler
def test_command_line_builds_a_trainer(tmp_path, capsys):
    (tmp_path / "training.py").write_text(TRAINING)
    assert command_line(["build", f"{tmp_path / 'training.py'}:make", str(tmp_path / "out"), "--name", "fit"]) == 0
    assert f"{tmp_path / 'out' / 'fit'} (" in capsys.readouterr().out


def test_names_in_c():
    assert identifiers(["x", "x", "in:0", "0", "int", "", "arena"], ["arena"]) == [
        "x", "x_2", "in_0", "x0", "int_", "x_3", "arena_2",
    ]  # fmt: skip
    assert text('a"\\?\n1é') == '"a\\042\\134\\077\\0121\\303\\251"'
