"""The event loop behind `tenure.sync`: one for a process, in a daemon thread that the first call starts."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeVar

from tenure.waiting import wait

T = TypeVar("T")

_GRACE_S = 2.0  # how long the end of a process waits for runs to end and connections to close


class Portal:
    """An event loop in a daemon thread, and the way into it.

    anyio's portal runs in a thread that the interpreter waits for at its end, and so would hang in a
    program that never closes it; a daemon thread does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine to its end and return what it returns, or raise what it raises."""
        return wait(coroutine, self._running_loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a fork takes no thread along
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run, args=(self._loop,), name="tenure-sync", daemon=True
                )
                thread.start()
                atexit.register(self._shut_down, self._loop, thread)
            return self._loop

    def _shut_down(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """At the end of the process, end what runs, and let models close their connections."""
        if self._pid == os.getpid():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end_all(loop), loop).result(_GRACE_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_GRACE_S)


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Do what `asyncio.run` does at its end: cancel first, so that each run gives back what it holds."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


PORTAL = Portal()
"""The one of this process."""
