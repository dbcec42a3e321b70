"""The store in RAM: the reference for every other driver, and the one of `memory://`.

It keeps the JSON that the others keep in their rows, so that what comes out of it is a copy, and what
cannot be stored elsewhere cannot be stored here. It lives as long as the object and the process do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.codec import from_json, to_json
from tenure.errors import StoreClosedError
from tenure.stores.base import Conversation, Store, checked_message_ids, checked_session_id

if TYPE_CHECKING:
    from tenure.messages import Message


@dataclass(slots=True)
class _Log:
    created_at: datetime
    updated_at: datetime
    revision: int = 0
    bodies: dict[str, str] = field(default_factory=dict[str, str])  # message id -> JSON, in order


class InMemoryStore(Store):
    """Keeps conversations in a dictionary, behind a lock."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}
        self._is_closed = False

    async def append(
        self, session_id: str, messages: Sequence[Message], *, run_id: str | None = None
    ) -> int:
        checked_session_id(session_id)
        checked_message_ids(messages)
        bodies = {message.id: to_json(message) for message in reversed(messages)}
        with self._open():
            log = self._logs.get(session_id)
            known = log.bodies if log is not None else {}
            new = {key: bodies[key] for key in reversed(bodies) if key not in known}
            if not new:
                return log.revision if log is not None else 0
            now = self._clock.now()
            if log is None:
                log = self._logs[session_id] = _Log(created_at=now, updated_at=now)
            log.bodies |= new
            log.revision += 1
            log.updated_at = now
            return log.revision

    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        with self._open():
            log = self._logs.get(session_id)
            bodies = list(log.bodies.values()) if log is not None else []
        if last is not None:
            bodies = bodies[max(0, len(bodies) - last) :]
        return [from_json(body) for body in bodies]

    async def conversation(self, session_id: str) -> Conversation | None:
        with self._open():
            log = self._logs.get(session_id)
            return None if log is None else _described(session_id, log)

    async def conversations(self, *, limit: int | None = None) -> list[Conversation]:
        with self._open():
            by_name = sorted(self._logs.items())
            newest = sorted(by_name, key=lambda item: item[1].updated_at, reverse=True)
            return [_described(session_id, log) for session_id, log in newest[:limit]]

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def close(self) -> None:
        self._is_closed = True

    def _open(self) -> threading.Lock:
        if self._is_closed:
            raise StoreClosedError
        return self._lock


def _described(session_id: str, log: _Log) -> Conversation:
    return Conversation(
        session_id=session_id,
        created_at=log.created_at,
        updated_at=log.updated_at,
        revision=log.revision,
        message_count=len(log.bodies),
    )
