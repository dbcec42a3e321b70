"""The SQLite driver: conversations and memories in one file. `base.py` says what it promises.

With `is_durable`, a write that has returned survives a power loss; without, it survives any death of the
process, and a power loss may take the last ones, never corrupting the file. What the operations do is in
`sqlite_log.py` and `sqlite_leases.py`, their queries in `sqlite.sql`, the schema in `sqlite_migrations/`;
what runs need is in `sqlite_run_store.py`; threads, transactions and errors are in `sqlite_engine.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Concatenate, ParamSpec

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.memory import Owner
from tenure.messages import Json, Message
from tenure.stores import sqlite_history as history
from tenure.stores import sqlite_leases as leases
from tenure.stores import sqlite_log as log
from tenure.stores import sqlite_owners as owners
from tenure.stores.base import (
    DEFAULT_TENANT,
    LEASE_TTL_S,
    Appended,
    Branch,
    Conversation,
    Entry,
    Forgotten,
    Lease,
    OnConflict,
    Participant,
    Redaction,
    Store,
)
from tenure.stores.checks import (
    checked_lease,
    checked_limit,
    checked_metadata,
    checked_name,
    checked_on_conflict,
    checked_session_id,
)
from tenure.stores.index_cache import IndexCache
from tenure.stores.memory_checks import checked_owner, checked_participant, checked_writer
from tenure.stores.memory_records import prepared_memories
from tenure.stores.sqlite_engine import Engine
from tenure.stores.sqlite_media import pack_all
from tenure.stores.sqlite_memo import Memo
from tenure.stores.sqlite_memory_store import SQLiteMemoryStore
from tenure.stores.sqlite_operations import Operating
from tenure.stores.sqlite_rows import Rows
from tenure.stores.sqlite_run_store import Running

P = ParamSpec("P")


class SQLiteStore(Running, Operating, Store):
    """Keeps conversations and memories in an SQLite file, which is opened or made on first use."""

    def __init__(
        self, path: str | Path, *, is_durable: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Name the file; nothing is opened yet.

        Args:
            path: The file; its folder must exist.
            is_durable: Whether a write waits until the disk has it (`synchronous=FULL`).
            clock: Where times and ids come from.
        """
        self.tenant = DEFAULT_TENANT
        self.lease_ttl_s = LEASE_TTL_S
        self.path = Path(path).absolute()
        self._clock = clock
        self._engine = Engine(self.path, is_durable=is_durable)
        self._memo = Memo()
        self._indexes = IndexCache()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r})"

    # --- writing ---

    async def append(
        self,
        session_id: str,
        messages: Sequence[Message],
        *,
        run_id: str | None = None,
        is_failed: bool = False,
        expected_revision: int | None = None,
        on_conflict: OnConflict = "raise",
        archive: Sequence[Message] = (),
        by: Participant | None = None,
        lease: Lease | None = None,
    ) -> Appended:
        return await self._write_by(
            checked_participant(by, run_id),
            log.append,
            checked_session_id(session_id),
            pack_all(messages),
            run_id=_run_id(run_id),
            is_failed=is_failed,
            expected_revision=expected_revision,
            on_conflict=checked_on_conflict(on_conflict),
            archive=pack_all(archive),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def start_branch(
        self,
        session_id: str,
        messages: Sequence[Message] = (),
        *,
        after: int,
        run_id: str | None = None,
        expected_revision: int | None = None,
        archive: Sequence[Message] = (),
        by: Participant | None = None,
        lease: Lease | None = None,
    ) -> Appended:
        return await self._write_by(
            checked_participant(by, run_id),
            log.start_branch,
            checked_session_id(session_id),
            pack_all(messages),
            after=after,
            run_id=_run_id(run_id),
            expected_revision=expected_revision,
            archive=pack_all(archive),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def fork(
        self, session_id: str, new_session_id: str, *, after: int | None = None
    ) -> Appended:
        names = checked_session_id(session_id), checked_session_id(new_session_id)
        return await self._write(log.fork, *names, after=after, clock=self._clock)

    async def rename(self, session_id: str, new_session_id: str) -> None:
        names = checked_session_id(session_id), checked_session_id(new_session_id)
        await self._write(log.rename, *names, clock=self._clock)

    async def set_metadata(self, session_id: str, metadata: Mapping[str, Json]) -> None:
        text = checked_metadata(metadata)
        await self._write(log.set_metadata, checked_session_id(session_id), text)

    async def redact(self, session_id: str, redaction: Redaction) -> int:
        name = checked_session_id(session_id)
        return await self._erasing(log.redact, name, redaction, clock=self._clock)

    async def delete(self, session_id: str) -> bool:
        return await self._erasing(log.delete, checked_session_id(session_id))

    async def forget(self, owner: Owner) -> Forgotten:
        checked_writer(owner)
        forgotten = await self._erasing(owners.forget, owner, clock=self._clock)
        self._indexes.clear()
        return forgotten

    # --- reading ---

    async def read(
        self, session_id: str, *, last: int | None = None, revision: int | None = None
    ) -> list[Message]:
        name, last = checked_session_id(session_id), checked_limit(last, "last")
        return await self._read(history.read, name, last=last, revision=revision)

    async def entries(
        self,
        session_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        branch: int | None = None,
    ) -> list[Entry]:
        name = checked_session_id(session_id)
        limit = checked_limit(limit)
        return await self._read(history.entries, name, after=after, limit=limit, branch=branch)

    async def branches(self, session_id: str) -> list[Branch]:
        return await self._read(history.branches, checked_session_id(session_id))

    async def conversation(self, session_id: str) -> Conversation | None:
        return await self._read(history.conversation, checked_session_id(session_id))

    async def conversations(
        self,
        *,
        limit: int | None = None,
        after: Conversation | None = None,
        owner: Owner | None = None,
    ) -> list[Conversation]:
        limit = checked_limit(limit)
        owner = checked_owner(owner) if owner is not None else None
        return await self._read(history.conversations, limit=limit, after=after, owner=owner)

    # --- leases ---

    async def request_lease(self, session_id: str, *, holder: str, wait: bool) -> Lease | None:
        return await self._write(
            leases.request,
            checked_session_id(session_id),
            holder=checked_name(holder, "holder"),
            wait=wait,
            ttl_s=self.lease_ttl_s,
            clock=self._clock,
        )

    def renew_lease(self, lease: Lease) -> bool:
        ttl_s, clock = self.lease_ttl_s, self._clock
        renew = self._bound(leases.renew, lease, ttl_s=ttl_s, clock=clock)
        return self._engine.begin_write(renew).result()

    async def release_lease(self, session_id: str, *, holder: str) -> None:
        name, holder = checked_session_id(session_id), checked_name(holder, "holder")
        releasing = self._engine.begin_write(self._bound(leases.release, name, holder=holder))
        await asyncio.shield(asyncio.wrap_future(releasing))

    # --- long-term memories ---

    def memories(self, owner: Owner) -> SQLiteMemoryStore:
        return SQLiteMemoryStore(
            owner,
            tenant=self.tenant,
            clock=self._clock,
            cache=self._indexes,
            write=self._write,
            read=self._read,
            erase=self._erasing,
        )

    # --- the handle ---

    def for_tenant(self, tenant: str) -> SQLiteStore:
        handle = copy(self)
        handle.tenant = checked_name(tenant, "tenant")
        return handle

    @property
    def is_closed(self) -> bool:
        return self._engine.is_closed

    async def close(self) -> None:
        await self._engine.closed()
        self._memo.clear()
        self._indexes.clear()

    # --- pieces ---

    async def _write_by(
        self,
        by: Participant | None,
        operation: Callable[Concatenate[Rows, P], Appended],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Appended:
        """Write, and in the same transaction what somebody remembers of it, and the end of their run."""
        if by is None:
            return await self._write(operation, *args, **kwargs)
        session_id, run_id, clock = str(args[0]), str(kwargs["run_id"]), self._clock
        items = await prepared_memories(by.memories, by.owner, tenant=self.tenant, clock=clock)
        ready = owners.PreparedParticipant(owner=by.owner, memories=items, ends_run=by.ends_run)

        def both(rows: Rows) -> Appended:
            written = operation(rows, *args, **kwargs)
            return owners.taken_part(rows, written, session_id, run_id, ready, clock=clock)

        return await self._write(both)


def _run_id(run_id: str | None) -> str | None:
    return None if run_id is None else checked_name(run_id, "run id")
