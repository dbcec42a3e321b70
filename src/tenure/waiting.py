"""How a thread waits for what runs on the event loop of another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from tenure.errors import UsageError

T = TypeVar("T")

_GRACE_S = 2.0  # how long Ctrl-C waits for what it cancels; a guess


def wait(
    coroutine: Coroutine[object, object, T], loop: Callable[[], asyncio.AbstractEventLoop]
) -> T:
    """Run a coroutine on another thread's loop, and return what it returns or raise what it raises.

    Args:
        coroutine: What to run; cancelled when this thread is interrupted, which then waits a little
            for it to end.
        loop: Gives that loop, if this thread may wait at all.

    Raises:
        UsageError: An event loop is running in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        coroutine.close()
        raise UsageError(
            "tenure.sync cannot wait where an event loop is running; use the async class of the same name."
        )
    has_ended = threading.Event()
    future = asyncio.run_coroutine_threadsafe(_watched(coroutine, has_ended), loop())
    try:
        return future.result()
    except BaseException:
        if future.cancel():  # after Ctrl-C it would run on otherwise
            has_ended.wait(_GRACE_S)
        raise


async def _watched(coroutine: Coroutine[object, object, T], has_ended: threading.Event) -> T:
    try:
        return await coroutine
    finally:
        has_ended.set()
