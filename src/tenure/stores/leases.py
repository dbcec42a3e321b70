"""Holding a conversation while a run works on it: waiting in line, and the heartbeat.

`base.py` says what a lease is. Here it is taken and kept: `hold` stands in line until it is this run's
turn, and threads of the process renew what is held, so that a run whose event loop is blocked by a tool
does not lose its conversation, while a process that is killed stops renewing and is replaced. So does a run
that was let go without an end: one that nobody holds any more, or whose event loop was closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from contextvars import ContextVar
from typing import Literal, TypeAlias
from weakref import WeakSet

from tenure.errors import ConversationBusyError, StoreError, UsageError
from tenure.stores.base import Lease, Store
from tenure.stores.checks import busy

OnBusy: TypeAlias = Literal["queue", "reject"]
"""What a run does while another one uses its conversation: wait in line, or raise."""

_POLL_S = (0.002, 0.05)  # the first and the longest pause between two looks; guesses
_BEATS = 3  # renewals in the time that a lease is good for, so that two may fail
_IDLE_S = 5.0  # how long the heartbeat's thread waits for more before it ends

_log = logging.getLogger(__name__)


class Held:
    """A lease that is held, and renewed until it is released."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.lease = lease
        self.is_active = True
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._next_beat_s = 0.0
        self.plan_beat()

    @property
    def next_beat_s(self) -> float:
        """When it is to be renewed, on the monotonic clock."""
        return self._next_beat_s

    def plan_beat(self) -> None:
        """Have it renewed a third of its time from now."""
        self._next_beat_s = time.monotonic() + self.store.lease_ttl_s / _BEATS

    def beat(self) -> None:
        """Renew it. One that is lost is not renewed again; the next write under it says so."""
        if self._loop.is_closed():  # the run will never go on
            self.is_active = False
            return
        try:
            self.is_active = self.store.renew_lease(self.lease) and self.is_active
        # Whatever it is, the other leases are renewed, and the next beat may find the database well.
        except Exception as exc:
            _log.warning("a lease was not renewed: %s", exc)

    def is_for(self, store: Store, session_id: str) -> bool:
        """Whether this is what a run on that conversation would wait for."""
        return self.is_active and self.store is store and self.lease.session_id == session_id

    async def release(self) -> None:
        """Let the next one in. When the database fails, it waits until the lease has run out."""
        self.is_active = False
        _heartbeat.discard(self)
        await _give_up(self.store, self.lease.session_id, holder=self.lease.holder)


async def hold(store: Store, session_id: str, *, holder: str, on_busy: OnBusy) -> Held:
    """Take the lease of a conversation, first come, first served, and keep it alive.

    When the caller is cancelled while waiting, its place in line is given up.

    Args:
        store: Where the conversation is.
        session_id: The conversation.
        holder: Names the run.
        on_busy: Whether to wait while another run has it.

    Raises:
        ConversationBusyError: Another run has it, and `on_busy` is `"reject"`.
        UsageError: The run that has it is the one that this is called from, and would wait for ever.
    """
    for outer in _held.get():
        if outer.is_for(store, session_id):
            raise UsageError(
                f"A run inside a run on the same conversation {session_id!r} would wait for itself; "
                "give the inner one another session id, or none."
            )
    pause_s, longest_s = _POLL_S
    wait = on_busy == "queue"
    try:
        while (lease := await store.request_lease(session_id, holder=holder, wait=wait)) is None:
            if not wait:
                raise busy(session_id)
            await asyncio.sleep(random.uniform(pause_s / 2, pause_s))  # noqa: S311
            pause_s = min(2 * pause_s, longest_s)
    except ConversationBusyError:
        raise
    except (Exception, asyncio.CancelledError):
        await _give_up(store, session_id, holder=holder)
        raise
    held = Held(store, lease)
    _heartbeat.add(held)
    _held.set((*(other for other in _held.get() if other.is_active), held))
    return held


class Holding:
    """What one run holds: its conversation in one store, or in several."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    async def take(self, store: Store, session_id: str, *, holder: str, on_busy: OnBusy) -> Held:
        """Return what is held there already, or take it; see `hold`."""
        found = next((held for held in self._held if held.store is store), None)
        if found is None:
            found = await hold(store, session_id, holder=holder, on_busy=on_busy)
            self._held.append(found)
        return found

    async def release(self) -> None:
        """Let the next one in everywhere."""
        while self._held:
            await self._held.pop().release()


async def _give_up(store: Store, session_id: str, *, holder: str) -> None:
    try:
        await store.release_lease(session_id, holder=holder)
    except StoreError as exc:  # what comes next is more important
        _log.warning("a lease was not given back and has to run out: %s", exc)


_held: ContextVar[tuple[Held, ...]] = ContextVar("held", default=())
"""What the run that this code belongs to holds. A task that outlives its run inherits it, which is why
what is released does not count."""


class _Heartbeat:
    """The thread that has renewed what this process holds. It ends when there is nothing left to renew.

    The renewing is done in threads that live for just that, one for each store, so that a store whose
    database is stuck keeps no other one waiting.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: WeakSet[Held] = WeakSet()  # a run that is gone is not kept by its lease
        self._busy: set[Store] = set()  # those that are renewing now
        self._thread: threading.Thread | None = None

    def add(self, held: Held) -> None:
        with self._changed:
            self._held.add(held)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tenure-heartbeat", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def discard(self, held: Held) -> None:
        with self._changed:
            self._held.discard(held)

    def _run(self) -> None:
        with self._changed:
            try:
                while self._held or self._changed.wait_for(lambda: self._held, _IDLE_S):
                    self._start_due()
                    idle = [held for held in self._held if held.store not in self._busy]
                    pause_s = min((held.next_beat_s for held in idle), default=math.inf)
                    pause_s -= time.monotonic()
                    del idle  # nothing of a run stays here while waiting
                    self._changed.wait(min(max(0.0, pause_s), _IDLE_S))
            finally:
                self._thread = None

    def _start_due(self) -> None:
        now = time.monotonic()
        for store in {held.store for held in self._held if held.next_beat_s <= now} - self._busy:
            self._busy.add(store)
            beat = threading.Thread(target=self._beat, args=(store,), daemon=True)
            beat.name = "tenure-heartbeat"
            beat.start()

    def _beat(self, store: Store) -> None:
        """Renew what is due in one store."""
        with self._changed:
            now = time.monotonic()
            due = [h for h in self._held if h.store is store and h.next_beat_s <= now]
        for held in due:
            held.beat()
            held.plan_beat()
        with self._changed:
            self._held.difference_update([held for held in due if not held.is_active])
            self._busy.discard(store)
            self._changed.notify()


_heartbeat = _Heartbeat()


def _start_anew() -> None:
    """A fork takes neither the threads nor the leases along."""
    global _heartbeat
    _heartbeat = _Heartbeat()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew)
