"""A clock that a test turns by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Stands still until it is told to go on; its ids count from 1."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start.astimezone(UTC)
        self._count = 0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The time at which it stands."""
        return self._now

    def new_id(self) -> str:
        """`id-000001`, `id-000002`, and so on."""
        with self._lock:
            self._count += 1
            return f"id-{self._count:06d}"

    def advance(self, seconds: float) -> None:
        """Go on by so many seconds."""
        self._now += timedelta(seconds=seconds)
