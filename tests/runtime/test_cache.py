"""The on-disk cache: what was put comes back, whatever happens to the files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.runtime.cache import Cache

ROOT = Path(__file__).resolve().parents[2]


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_what_was_put_comes_back(directory: Path) -> None:
    cache = Cache(directory)
    assert cache.get("key") is None
    cache.put("key", b"contents")
    cache.put("empty", b"")
    assert cache.get("key") == b"contents"
    assert cache.get("empty") == b""
    assert Cache(directory).get("key") == b"contents"


def test_keys_may_be_any_text(directory: Path) -> None:
    cache = Cache(directory)
    keys = ["../../escape", "a/b", "x" * 10_000, "ü\n\0", ""]
    for key in keys:
        cache.put(key, key.encode())
    assert [cache.get(key) for key in keys] == [key.encode() for key in keys]
    assert all(path.is_relative_to(directory) for path in files(directory))
    assert not (directory.parent / "escape").exists()


def test_a_later_entry_replaces_an_earlier_one(directory: Path) -> None:
    cache = Cache(directory)
    cache.put("key", b"old")
    cache.put("key", b"new")
    assert cache.get("key") == b"new"
    assert len(files(directory)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
)
def test_a_damaged_entry_is_missing_and_removed(directory: Path, damage) -> None:
    cache = Cache(directory)
    cache.put("key", b"contents " * 10)
    (path,) = files(directory)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("key") is None
    assert files(directory) == []


def test_the_least_recently_used_entries_go_first(directory: Path) -> None:
    cache = Cache(directory, maximum_bytes=10_000)
    for index in range(5):
        cache.put(f"key {index}", bytes(1500))
        os.utime(cache._path(f"key {index}"), (1000 + index, 1000 + index))
    assert cache.get("key 0") is not None  # used: now the most recent
    for index in range(5, 8):
        cache.put(f"key {index}", bytes(1500))
    kept = [index for index in range(8) if cache.get(f"key {index}") is not None]
    assert sum(path.stat().st_size for path in files(directory)) <= 10_000
    assert 0 in kept
    assert 1 not in kept
    assert 7 in kept


def test_an_entry_beyond_the_bound_is_not_kept(directory: Path) -> None:
    cache = Cache(directory, maximum_bytes=100)
    cache.put("key", bytes(101))
    assert files(directory) == []


def test_abandoned_temporary_files_are_removed(directory: Path) -> None:
    cache = Cache(directory, maximum_bytes=1000)
    cache.put("key", b"contents")
    abandoned = files(directory)[0].with_name(".dead.new")
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (1000, 1000))
    cache.put("other", bytes(900))
    assert not abandoned.exists()


def test_no_directory_means_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    cache = Cache()
    cache.put("key", b"contents")
    assert cache.get("key") is None


def test_a_directory_that_cannot_be_made_means_no_cache(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    cache = Cache(blocked / "cache")
    cache.put("key", b"contents")
    assert cache.get("key") is None


def test_a_directory_that_everybody_may_write_is_not_used(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    cache = Cache(directory)
    cache.put("key", b"contents")
    assert cache.get("key") is None
    assert files(directory) == []


def test_a_directory_that_vanishes_is_an_empty_one(directory: Path) -> None:
    cache = Cache(directory)
    directory.rmdir()
    cache.put("key", b"contents")
    assert cache.get("key") is None


def test_the_environment_chooses(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(directory))
    monkeypatch.setenv("INGOT_CACHE_BYTES", "12345")
    cache = Cache()
    assert (cache.directory, cache.maximum_bytes) == (directory, 12345)
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    assert Cache().directory is None
    monkeypatch.delenv("INGOT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    assert Cache().directory == directory / "ingot"


def test_several_processes_write_and_read_at_once(directory: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from ingot.runtime.cache import Cache
cache = Cache(Path({str(directory)!r}), maximum_bytes=40_000)
for round in range(200):
    key = str(round % 20)
    cache.put(key, (key * 1000).encode())
    found = cache.get(str((round * 7) % 20))
    assert found is None or found == (str((round * 7) % 20) * 1000).encode()
"""
    processes = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert not [path for path in files(directory) if path.name.startswith(".")]
