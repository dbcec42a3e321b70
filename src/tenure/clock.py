"""Time and ids: the only place in tenure that asks the machine for either.

Everything that stamps or names something takes a `Clock`, so that a test can hold time still
(`tenure.testing.ManualClock`) and two runs of it produce the same ids.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

from tenure.errors import InvalidValueError


class Clock(Protocol):
    """Where times and ids come from."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        ...

    def new_id(self) -> str:
        """Return an id that no earlier call returned; later ids sort after earlier ones."""
        ...


class SystemClock:
    """The machine's clock, and UUIDs of version 7.

    Ids of one process sort in the order in which they were made, also within one millisecond and
    when the machine's clock steps back: the counter keeps counting from the last id.

    Source: RFC 9562, sections 5.7 and 6.2 (method 1: a counter after the millisecond). The counter
    has 42 bits, seeded with 41 random ones each millisecond so that it has room to count.
    """

    def __init__(self) -> None:
        self.start_anew()
        self._last_ms = 0
        self._counter = 0

    def start_anew(self) -> None:
        """Be usable in a child process, where a thread that counted when it was forked is gone."""
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def new_id(self) -> str:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms > self._last_ms:
                self._last_ms, self._counter = now_ms, secrets.randbits(41)
            else:
                self._counter += 1
            millisecond, counter = self._last_ms, self._counter
        return _uuid7(millisecond, counter, secrets.randbits(32))


def in_utc(moment: datetime) -> datetime:
    """Return a time in UTC.

    Raises:
        InvalidValueError: It is no datetime, has no time zone, or is out of range in UTC.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"The time {moment!r} has no time zone; pass an aware datetime.")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise InvalidValueError(f"The time {moment!r} is out of range in UTC.") from exc


def _uuid7(millisecond: int, counter: int, random: int) -> str:
    """Lay out 48 bits of time, 42 of counter and 32 of randomness as a version 7 UUID."""
    high = (millisecond << 16) | (0x7 << 12) | (counter >> 30)
    low = (0b10 << 62) | ((counter & 0x3FFFFFFF) << 32) | random
    digits = f"{(high << 64) | low:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


SYSTEM_CLOCK = SystemClock()
"""The clock of everything that was given no other one."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=SYSTEM_CLOCK.start_anew)
