"""Program files: round trip, laziness, atomic replacement, and every kind of damage."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.runtime.errors import (
    IngotRuntimeError,
    ProgramFormatError,
    ProgramVersionError,
    TargetMismatchError,
)
from ingot.runtime.executable import Executable, load
from ingot.runtime.image import Image
from ingot.runtime.manifest import TargetSpec, TensorSpec
from ingot.runtime.program import Program
from tests.runtime.native import HOST
from tests.runtime.sample import BIAS, sample_manifest, sample_program

ROOT = Path(__file__).resolve().parents[2]
HEADER_BYTES = 128
DIGEST_BYTES = 16


@pytest.fixture(scope="module")
def program() -> Program:
    return sample_program()


@pytest.fixture
def saved(program: Program, tmp_path: Path) -> Path:
    path = tmp_path / "model.ingot"
    program.save(path)
    return path


def signed(data: bytearray) -> bytes:
    """The file with a checksum that fits its (mutated) contents, so that the checks behind it are reached."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(data[: HEADER_BYTES - DIGEST_BYTES])
    places = struct.unpack_from("<6Q", data, 24)
    for offset, length in zip(places[::2], places[1::2], strict=True):
        digest.update(data[offset : offset + length])
    data[HEADER_BYTES - DIGEST_BYTES : HEADER_BYTES] = digest.digest()
    return bytes(data)


def test_round_trip(program: Program, saved: Path) -> None:
    again = Program.load(saved, verify=True)
    assert again.manifest == program.manifest
    assert again.image == program.image
    np.testing.assert_array_equal(again.constants["bias"], BIAS)
    assert again.initial_states["calls"] == 40


def test_saving_is_deterministic(program: Program, saved: Path, tmp_path: Path) -> None:
    program.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_constants_of_every_dtype_and_shape_come_back(program: Program, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {
        "bf16": generator.normal(size=(3, 5)).astype(ml_dtypes.bfloat16),
        "f16": generator.normal(size=7).astype(np.float16),
        "bool": np.array([True, False, True]),
        "i8": np.arange(-3, 4, dtype=np.int8),
        "u64": np.array([1 << 63], np.uint64),
        "f64": np.array(3.5),
        "f32": np.empty((0, 4), np.float32),
        "i64": np.asfortranarray(generator.integers(-9, 9, size=(4, 6))),
    }
    specs = tuple(TensorSpec(name, name, array.shape) for name, array in arrays.items())
    manifest = sample_manifest(constants=specs)
    replace(program, manifest=manifest, constants=arrays).save(tmp_path / "p")
    loaded = Program.load(tmp_path / "p", verify=True)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded.constants[name], array)
        assert loaded.constants[name].dtype == array.dtype
        assert not loaded.constants[name].flags.writeable
        assert loaded.constants[name].__array_interface__["data"][0] % 64 == 0 or array.size == 0


def test_an_empty_last_array_does_not_shorten_the_file(program: Program, tmp_path: Path) -> None:
    manifest = sample_manifest(constants=(TensorSpec("none", "f32", (0,)),))
    empty = {"none": np.empty(0, np.float32)}
    Program(manifest, program.image, empty).save(tmp_path / "p")
    assert Program.load(tmp_path / "p").constants["none"].shape == (0,)


def test_loading_does_not_read_the_weights(program: Program, tmp_path: Path) -> None:
    """64 MB of weights load in the time of the header: nowhere near the time it takes to read them."""
    size = 1 << 24
    manifest = sample_manifest(constants=(TensorSpec("large", "f32", (size,)),))
    path = tmp_path / "large"
    Program(manifest, program.image, {"large": np.zeros(size, np.float32)}).save(path)
    start = time.perf_counter()
    Program.load(path)
    quick = time.perf_counter() - start
    start = time.perf_counter()
    Program.load(path, verify=True)
    thorough = time.perf_counter() - start
    assert quick < thorough / 5


def test_saving_over_a_file_keeps_its_readers(program: Program, saved: Path) -> None:
    loaded = Program.load(saved)
    Program(program.manifest, program.image, {"bias": -BIAS}).save(saved)
    np.testing.assert_array_equal(loaded.constants["bias"], BIAS)
    np.testing.assert_array_equal(Program.load(saved).constants["bias"], -BIAS)
    assert list(saved.parent.iterdir()) == [saved]


def test_a_failed_save_leaves_the_old_file(
    program: Program, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        program.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_every_truncation_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for length in [*range(0, 300, 7), *range(300, len(data), 251), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(ProgramFormatError, match="cannot load"):
            Program.load(saved)


def test_every_flipped_bit_is_refused(saved: Path) -> None:
    """In the header or in the code; the arrays have checksums of their own."""
    data = saved.read_bytes()
    generator = random.Random(2)
    image_offset, image_bytes = struct.unpack_from("<2Q", data, 56)
    positions = [generator.randrange(8, HEADER_BYTES) for _ in range(100)]
    positions += [generator.randrange(image_offset, image_offset + image_bytes) for _ in range(200)]
    for position in positions:
        mutated = bytearray(data)
        mutated[position] ^= 1 << generator.randrange(8)
        saved.write_bytes(mutated)
        with pytest.raises((ProgramFormatError, ProgramVersionError)):
            Program.load(saved)


def test_damaged_weights_are_found_by_verify(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    position = bytes(data).index(BIAS.tobytes())
    data[position] ^= 1
    saved.write_bytes(data)
    Program.load(saved)
    with pytest.raises(ProgramFormatError, match="values of 'bias' are damaged"):
        Program.load(saved, verify=True)


def test_random_damage_behind_the_checksum_never_crashes(saved: Path) -> None:
    """Header, manifest and table are mutated and signed again: either it loads, or the error is ours."""
    data = saved.read_bytes()
    image_offset = struct.unpack_from("<Q", data, 56)[0]
    generator = random.Random(3)
    refused = 0
    for round_number in range(500):
        mutated = bytearray(data)
        lowest = 12 if round_number % 2 else HEADER_BYTES
        for _ in range(generator.randint(1, 3)):
            position = generator.randrange(lowest, image_offset)
            mutated[position] = generator.choice(
                [0, 0x7F, 0xFF, 0x80, 0x30, 0x22, 0x2C, 0x5D, 0x7D, generator.randrange(256)]
            )
        saved.write_bytes(signed(mutated))
        try:
            Program.load(saved, verify=True)
        except IngotRuntimeError:
            refused += 1
    assert 250 < refused < 500


@pytest.mark.parametrize("contents", [b"", b"INGOTPRG", b"x" * 1000, bytes(10_000)])
def test_other_files_are_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(contents)
    with pytest.raises(ProgramFormatError, match="cannot load"):
        Program.load(path)


def test_a_missing_file_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Program.load(tmp_path / "nothing")


def test_another_version_is_refused(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    struct.pack_into("<I", data, 8, 77)
    saved.write_bytes(data)
    with pytest.raises(ProgramVersionError, match="format version 77"):
        Program.load(saved)


def test_missing_instructions_are_named(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.runtime.cpu.processor_flags", lambda: frozenset({"avx2"}))
    manifest = sample_manifest(target=TargetSpec(HOST, "future-cpu", ("avx2", "avx512f", "amx-tile")))
    with pytest.raises(TargetMismatchError, match=r"future-cpu .* lacks: avx512f, amx-tile; compile it"):
        Executable(replace(program, manifest=manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constants": {}}, "constants are not those of its manifest"),
        (
            {"constants": {"bias": np.zeros(4, np.float32)}},
            r"'bias' is f32\[4\], its manifest says bias: f32\[3\]",
        ),
        ({"constants": {"bias": np.zeros(3)}}, r"'bias' is f64\[3\]"),
        ({"initial_states": {"other": np.array(0)}}, "'other', which is no state"),
        ({"initial_states": {"calls": np.zeros(2)}}, r"'calls' is f64\[2\]"),
        ({"image": Image("x86_64", ())}, "exports no 'ingot_entry'"),
    ],
)
def test_programs_are_consistent(program: Program, changes: dict, message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        replace(program, **changes)


def test_a_saved_program_runs_in_a_process_without_the_compiler(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "model.ingot"
    Executable(program).save(path)
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from ingot.runtime.executable import load
executable = load({str(path)!r}, threads=2)
x = np.arange(12, dtype=np.float32).reshape(4, 3)
y, z = executable(x)
assert np.array_equal(y, 2 * x + np.array([0.5, -1.0, 100.0], np.float32))
assert list(z) == list(range(8)) and executable.states["calls"] == 41
forbidden = ("llvmlite", "onnx", "networkx")
assert not [name for name in sys.modules if name.split(".")[0] in forbidden]
assert not [name for name in sys.modules if name.startswith(("ingot.compiler", "ingot.frontends"))]
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr


def test_loading_an_executable_takes_milliseconds(saved: Path) -> None:
    load(saved)
    start = time.perf_counter()
    load(saved)
    assert time.perf_counter() - start < 0.1  # about 1 ms; the bound allows for a busy machine
