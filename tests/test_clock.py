"""Ids and times."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tenure.clock import SYSTEM_CLOCK, SystemClock


def test_ids_sort_in_order_of_creation() -> None:
    """Ten thousand ids made in one go, several thousand in one millisecond, are in order."""
    ids = [SYSTEM_CLOCK.new_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 10_000


def test_ids_of_one_millisecond_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids sort also while time stands still."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_225_600_000_000_000)
    clock = SystemClock()
    ids = [clock.new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


def test_ids_sort_when_time_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back, even by a year, does not disorder ids."""
    clock, ids = SystemClock(), []
    start = 1_767_225_600_000_000_000
    for now in (
        start,
        start + 5_000_000,
        start - 10**9,
        start - 31_536_000 * 10**9,
        start,
        start + 10**9,
    ):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        ids += [clock.new_id(), clock.new_id()]
    assert ids == sorted(ids)
    assert len(set(ids)) == 12


def test_ids_of_threads_are_unique() -> None:
    """Eight threads get ids of their own, each in order."""
    clock = SystemClock()
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: [clock.new_id() for _ in range(2000)], range(8)))
    assert len({i for ids in lists for i in ids}) == 16_000
    assert all(ids == sorted(ids) for ids in lists)


def test_ids_are_uuids_of_version_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id is an RFC 9562 UUID of version 7 whose first 48 bits are the milliseconds."""
    milliseconds = 0x017F22E279B0  # the RFC's own example, appendix A.6
    monkeypatch.setattr(time, "time_ns", lambda: milliseconds * 1_000_000 + 999_999)
    made = SystemClock().new_id()
    parsed = uuid.UUID(made)
    assert str(parsed) == made
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == milliseconds


def test_ids_of_two_clocks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that start in one millisecond do not make the same ids."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_225_600_000_000_000)
    one, two = SystemClock(), SystemClock()
    assert not {one.new_id() for _ in range(100)} & {two.new_id() for _ in range(100)}


def test_now_is_aware_utc() -> None:
    """C31: the time has a zone, and it is UTC."""
    now = SYSTEM_CLOCK.now()
    assert now.utcoffset() == timedelta(0)
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_forked_child_can_make_ids() -> None:
    """A child that is forked while another thread makes an id makes its own, and waits for nobody."""
    script = """
        import os, threading
        from tenure.clock import SYSTEM_CLOCK

        is_held = threading.Event()

        def hold():
            with SYSTEM_CLOCK._lock:
                is_held.set()
                threading.Event().wait()

        threading.Thread(target=hold, daemon=True).start()
        is_held.wait()
        pid = os.fork()
        if pid == 0:
            SYSTEM_CLOCK.new_id()
            os._exit(0)
        for _ in range(3000):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                os._exit(status)
            threading.Event().wait(0.01)
        os.kill(pid, 9)
        os._exit(1)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
