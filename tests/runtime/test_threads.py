"""Thread limits from affinity, control groups and the environment; the shared pool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.compiler.codegen.pool import pool_module
from ingot.runtime import settings
from ingot.runtime.abi import POOL_EXPORTS
from ingot.runtime.errors import IngotRuntimeError
from ingot.runtime.loader import LoadedImage
from ingot.runtime.threads import cgroup_processors, shared_pool, thread_limit
from tests.runtime.native import HOST, image_of


def filesystem(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/outer/inner\n",
                "sys/fs/cgroup/outer/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/outer/inner/cpu.max": "800000 100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/docker/long/path/that/is/not/mounted\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_control_group_quota(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert cgroup_processors(filesystem(tmp_path, files)) == expected


def test_limit_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGOT_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("ingot.runtime.threads.cgroup_processors", lambda: None)
    assert thread_limit() == 6
    monkeypatch.setattr("ingot.runtime.threads.cgroup_processors", lambda: 4)
    assert thread_limit() == 4
    monkeypatch.setenv("INGOT_THREADS", "3")
    assert thread_limit() == 3
    monkeypatch.setenv("INGOT_THREADS", "30")
    assert thread_limit() == 4


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("INGOT_THREADS", value)
    with pytest.raises(IngotRuntimeError, match="INGOT_THREADS must be a positive integer"):
        settings.thread_request()


def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_THREADS", " ")
    assert settings.thread_request() is None


def test_one_pool_serves_all_thread_counts() -> None:
    image = LoadedImage(image_of(pool_module(HOST), exports=POOL_EXPORTS))
    handles = [shared_pool(image, threads) for threads in (2, 3, 2)]
    before = len(os.listdir("/proc/self/task"))
    assert [handle.address for handle in handles] == [0, 0, 0], "no threads before the first use"
    assert len(os.listdir("/proc/self/task")) == before
    for handle in handles:
        handle.renew()
    two, three, again = [handle.address for handle in handles]
    assert two == again != three
    assert len(os.listdir("/proc/self/task")) <= before + 2
