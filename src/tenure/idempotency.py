"""Keys that name a call of a tool, so that what it does elsewhere happens once however often it is tried.

A run puts a block of `calling` around each tool that it calls; `run.py` says what the key is made of.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tenure.errors import UsageError

_key: ContextVar[str | None] = ContextVar("_key", default=None)
"""Of the call that the running code is in. Tasks inherit it, and the threads of plain tools."""


def idempotency_key() -> str:
    """Return a text that names the call of the tool that asks.

    It is the same whenever that same call is tried again, also in another process when a run is
    resumed, and differs for every other call. Give it to a service that does nothing twice for one key,
    or keep it beside what the tool has written. In a tool of a run inside a tool it names the inner call.

    Raises:
        UsageError: No run is calling a tool around this.
    """
    key = _key.get()
    if key is None:
        raise UsageError("There is no idempotency key outside of a tool that a run is calling.")
    return key


@contextmanager
def calling(key: str) -> Generator[None]:
    """Have what runs inside the block know the key of its call."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)
