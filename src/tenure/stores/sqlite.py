"""The SQLite driver: conversations in one file. `base.py` says what it promises.

With `is_durable`, an append that has returned survives a power loss; without, it survives any death of
the process, and a power loss may take the last ones, never corrupting the file. Queries are in
`sqlite.sql`, the schema in `sqlite_migrations/`; threads, transactions and errors in `sqlite_engine.py`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.codec import from_json, to_json
from tenure.messages import Message
from tenure.stores.base import (
    DEFAULT_TENANT,
    Conversation,
    Store,
    checked_message_ids,
    checked_session_id,
)
from tenure.stores.migrations import named_queries
from tenure.stores.sqlite_engine import Engine, finished


class SQLiteStore(Store):
    """Keeps conversations in an SQLite file, which is opened or made on first use."""

    def __init__(
        self, path: str | Path, *, is_durable: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Name the file; nothing is opened yet.

        Args:
            path: The file; its folder must exist.
            is_durable: Whether an append waits until the disk has it (`synchronous=FULL`).
            clock: Where times and ids come from.
        """
        self.path = Path(path).absolute()
        self._clock = clock
        self._engine = Engine(self.path, is_durable=is_durable)
        self._sql = named_queries("sqlite.sql")

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    async def append(
        self, session_id: str, messages: Sequence[Message], *, run_id: str | None = None
    ) -> int:
        checked_session_id(session_id)
        checked_message_ids(messages)
        rows = [
            {
                "message_id": message.id,
                "run_id": run_id,
                "created_at": message.created_at.isoformat(timespec="microseconds"),
                "body": to_json(message),
            }
            for message in messages
        ]
        if not rows:
            found = await self.conversation(session_id)
            return found.revision if found is not None else 0
        append = partial(self._append, session_id=session_id, rows=rows)
        return await finished(self._engine.write(append))

    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        checked_session_id(session_id)
        read = partial(self._read, session_id=session_id, last=last)
        return await finished(self._engine.read(read))

    async def conversation(self, session_id: str) -> Conversation | None:
        checked_session_id(session_id)

        def find(connection: sqlite3.Connection) -> Conversation | None:
            row = self._find(connection, session_id)
            return None if row is None else _described({**row, "session_id": session_id})

        return await finished(self._engine.read(find))

    async def conversations(self, *, limit: int | None = None) -> list[Conversation]:
        params = {"tenant": DEFAULT_TENANT, "limit": -1 if limit is None else limit}

        def find(connection: sqlite3.Connection) -> list[Conversation]:
            return [_described(row) for row in self._rows(connection, "list_conversations", params)]

        return await finished(self._engine.read(find))

    @property
    def is_closed(self) -> bool:
        return self._engine.is_closed

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    # --- in the engine's threads ---

    def _append(
        self, connection: sqlite3.Connection, *, session_id: str, rows: list[dict[str, str | None]]
    ) -> int:
        now = self._clock.now().isoformat(timespec="microseconds")
        key = {"tenant": DEFAULT_TENANT, "session_id": session_id, "now": now}
        found = self._find(connection, session_id)
        if found is None:
            key["conversation_id"] = self._clock.new_id()
            connection.execute(self._sql["create_conversation"], key)
            connection.execute(self._sql["create_branch"], key)
            found = self._find(connection, session_id)
            assert found is not None
        branch = {name: found[name] for name in ("conversation_id", "branch")}
        branch["tenant"] = DEFAULT_TENANT
        seq = int(found["last_seq"])
        for row in rows:
            known = {**branch, "message_id": row["message_id"]}
            if connection.execute(self._sql["has_message"], known).fetchone() is None:
                seq += 1
                connection.execute(self._sql["append_entry"], {**branch, **row, "seq": seq})
        written = seq - int(found["last_seq"])
        if not written:
            return int(found["revision"])
        count = int(found["message_count"]) + written
        connection.execute(
            self._sql["advance_conversation"], {**key, "last_seq": seq, "message_count": count}
        )
        return int(found["revision"]) + 1

    def _read(
        self, connection: sqlite3.Connection, *, session_id: str, last: int | None
    ) -> list[Message]:
        found = self._find(connection, session_id)
        if found is None:
            return []
        params = {**found, "tenant": DEFAULT_TENANT, "limit": -1 if last is None else last}
        rows = self._rows(connection, "read_last", params)
        return [from_json(str(row["body"])) for row in reversed(rows)]

    def _find(self, connection: sqlite3.Connection, session_id: str) -> dict[str, str | int] | None:
        key = {"tenant": DEFAULT_TENANT, "session_id": session_id}
        rows = self._rows(connection, "find_conversation", key)
        return rows[0] if rows else None

    def _rows(
        self, connection: sqlite3.Connection, query: str, params: Mapping[str, str | int]
    ) -> list[dict[str, str | int]]:
        cursor = connection.execute(self._sql[query], params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]


def _described(row: dict[str, str | int]) -> Conversation:
    return Conversation(
        session_id=str(row["session_id"]),
        created_at=datetime.fromisoformat(str(row["created_at"])),
        updated_at=datetime.fromisoformat(str(row["updated_at"])),
        revision=int(row["revision"]),
        message_count=int(row["message_count"]),
    )
