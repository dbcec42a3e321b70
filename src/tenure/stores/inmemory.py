"""The store in RAM: the reference for every other driver, and the one of `memory://`.

It keeps the JSON that the others keep in their rows, so that what comes out of it is a copy, and what
cannot be stored elsewhere cannot be stored here. A branch is a plain list of rows, copied where the others
share; nothing here is clever. It lives as long as the object and the process do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.memory import Owner
from tenure.messages import Json, Message
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
    busy,
    checked_after,
    checked_lease,
    checked_limit,
    checked_metadata,
    checked_name,
    checked_on_conflict,
    checked_session_id,
    conflict,
    existing,
    unknown,
    unknown_revision,
)
from tenure.stores.inmemory_leases import Leasing
from tenure.stores.inmemory_log import (
    Log,
    LogRow,
    Shelf,
    add_aside,
    appended,
    as_first_logged,
    described,
    entry_of,
    extended,
    forgotten,
    listed,
    new_rows,
    place_in_list,
    redacted,
    unknown_to,
)
from tenure.stores.inmemory_memories import InMemoryMemoryStore
from tenure.stores.inmemory_runs import Running
from tenure.stores.memory_checks import checked_owner, checked_participant, checked_writer
from tenure.stores.memory_records import prepared_memories


class InMemoryStore(Running, Leasing, Store):
    """Keeps conversations in dictionaries, behind a lock."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tenant = DEFAULT_TENANT
        self.lease_ttl_s = LEASE_TTL_S
        self._clock = clock
        self._shelf = Shelf()

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
        checked_on_conflict(on_conflict)
        new = new_rows(session_id, messages, run_id=run_id, is_failed=is_failed)
        aside = new_rows(session_id, archive, run_id=run_id)
        take_part = await self._participation(session_id, by, run_id)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id)
            rows = log.branches[log.branch].rows if log is not None else []
            if not unknown_to(rows, new):
                return take_part(appended(session_id, log, 0), now)
            revision = log.revision if log is not None else 0
            if expected_revision is not None and expected_revision != revision:
                could_fork = 0 <= expected_revision < revision
                if on_conflict == "raise" or (on_conflict == "fork" and not could_fork):
                    raise conflict(
                        session_id, expected_revision=expected_revision, revision=revision
                    )
                if on_conflict == "fork":
                    assert log is not None
                    base = log.history_at(expected_revision) if expected_revision else []
                    end = log.commits[expected_revision][1] if expected_revision else 0
                    session_id = f"{session_id}~{self._clock.new_id()}"
                    log = self._create(session_id, base, end, now, log.runs)
            log = log or self._create(session_id, [], 0, now)
            add_aside(log, aside)
            return take_part(extended(session_id, log, new, now), now)

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
        new = new_rows(session_id, messages, run_id=run_id)
        aside = new_rows(session_id, archive, run_id=run_id)
        take_part = await self._participation(session_id, by, run_id)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._known(session_id)
            if expected_revision not in (None, log.revision):
                raise conflict(
                    session_id, expected_revision=expected_revision or 0, revision=log.revision
                )
            checked_after(after, log.last_seq)
            new = as_first_logged(new, log.branches[log.branch].rows)
            add_aside(log, aside)
            log.branch_off(after)
            return take_part(extended(session_id, log, new, now), now)

    async def fork(
        self, session_id: str, new_session_id: str, *, after: int | None = None
    ) -> Appended:
        checked_session_id(new_session_id)
        with self._locked() as now:
            log = self._known(session_id)
            end = log.last_seq if after is None else checked_after(after, log.last_seq)
            if self._found(new_session_id) is not None:
                raise existing(new_session_id)
            shared = [row for row in log.branches[log.branch].rows if row.seq <= end]
            made = self._create(new_session_id, shared, end, now, log.runs)
            made.commit(now)
            return appended(new_session_id, made, 0)

    async def rename(self, session_id: str, new_session_id: str) -> None:
        checked_session_id(new_session_id)
        with self._locked():
            log = self._known(session_id)
            if new_session_id == session_id:
                return
            if self._found(new_session_id) is not None:
                raise existing(new_session_id)
            turn = self._shelf.turns.get((self.tenant, session_id))
            if turn is not None and self._is_held(turn):
                raise busy(session_id)
            self._shelf.turns.pop((self.tenant, session_id), None)
            del self._shelf.logs[self.tenant, session_id]
            self._shelf.logs[self.tenant, new_session_id] = log

    async def set_metadata(self, session_id: str, metadata: Mapping[str, Json]) -> None:
        text = checked_metadata(metadata)
        with self._locked():
            self._known(session_id).metadata = text

    async def redact(self, session_id: str, redaction: Redaction) -> int:
        redacting = asyncio.ensure_future(asyncio.to_thread(self._redact, session_id, redaction))
        try:
            return await asyncio.shield(redacting)
        except asyncio.CancelledError:
            await asyncio.wait({redacting})  # so that the next read tells
            raise

    async def delete(self, session_id: str) -> bool:
        with self._locked():
            self._shelf.turns.pop((self.tenant, session_id), None)
            return self._shelf.logs.pop((self.tenant, session_id), None) is not None

    async def forget(self, owner: Owner) -> Forgotten:
        checked_writer(owner)
        with self._locked() as now:
            count = self.memories(owner).forget()
            return replace(forgotten(self._shelf, self.tenant, owner, now), memories=count)

    # --- reading ---

    async def read(
        self, session_id: str, *, last: int | None = None, revision: int | None = None
    ) -> list[Message]:
        last = checked_limit(last, "last")
        with self._locked():
            log = self._found(session_id)
            if revision is None and log is not None:
                rows = list(log.branches[log.branch].rows)
            elif revision:
                if log is None or revision not in log.commits:
                    raise unknown_revision(session_id, revision)
                rows = log.history_at(revision)
            else:
                rows = []
        first = 0 if last is None else max(0, len(rows) - last)
        return [entry_of(row).message for row in rows[first:]]

    async def entries(
        self,
        session_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        branch: int | None = None,
    ) -> list[Entry]:
        limit = checked_limit(limit)
        with self._locked():
            log = self._found(session_id)
            number = branch if branch is not None or log is None else log.branch
            found = log.branches.get(number or 0) if log is not None else None
            rows = [row for row in found.rows if row.seq > after] if found is not None else []
        return [entry_of(row) for row in rows[:limit]]

    async def branches(self, session_id: str) -> list[Branch]:
        with self._locked():
            log = self._found(session_id)
            found = sorted(log.branches.items()) if log is not None else []
            return [
                Branch(branch=n, parent=b.parent, parent_seq=b.parent_seq, run_id=b.run_id)
                for n, b in found
            ]

    async def conversation(self, session_id: str) -> Conversation | None:
        with self._locked():
            log = self._found(session_id)
            return None if log is None else described(session_id, log)

    async def conversations(
        self,
        *,
        limit: int | None = None,
        after: Conversation | None = None,
        owner: Owner | None = None,
    ) -> list[Conversation]:
        limit = checked_limit(limit)
        owner = checked_owner(owner) if owner is not None else None
        with self._locked():
            found = listed(self._shelf, self.tenant, owner)
        if after is not None:
            found = [item for item in found if place_in_list(item) > place_in_list(after)]
        return found[:limit]

    # --- long-term memories ---

    def memories(self, owner: Owner) -> InMemoryMemoryStore:
        cabinet, clock = self._shelf.cabinet, self._clock
        return InMemoryMemoryStore(owner, tenant=self.tenant, clock=clock, cabinet=cabinet)

    # --- the handle ---

    def for_tenant(self, tenant: str) -> InMemoryStore:
        handle = copy(self)
        handle.tenant = checked_name(tenant, "tenant")
        return handle

    @property
    def is_closed(self) -> bool:
        return self._shelf.is_closed

    async def close(self) -> None:
        self._shelf.is_closed = self._shelf.cabinet.is_closed = True

    # --- pieces ---

    async def _participation(
        self, session_id: str, by: Participant | None, run_id: str | None
    ) -> Callable[[Appended, datetime], Appended]:
        """What to do behind the lock, when the rest is done, for who writes in a run."""
        if checked_participant(by, run_id) is None:
            return lambda written, _: written
        assert by is not None
        clock, memories = self._clock, self.memories(by.owner)
        ready = await prepared_memories(by.memories, by.owner, tenant=self.tenant, clock=clock)

        def take_part(written: Appended, now: datetime) -> Appended:
            log = self._found(written.session_id)
            if log is not None:
                log.runs.setdefault(run_id or "", by.owner)
            begun_in = self._found(session_id)  # another one when it has just been forked
            if by.ends_run and begun_in is not None:
                begun_in.end_run(run_id or "", now)
            return replace(written, memories=tuple(memories.add_prepared(ready)))

        return take_part

    def _redact(self, session_id: str, redaction: Redaction) -> int:
        known: dict[int, tuple[LogRow, LogRow | None]] = {}  # by identity, which branches share
        while True:
            with self._locked() as now:
                log = self._known(session_id)
                rows = [row for branch in log.branches.values() for row in branch.rows]
                fresh = [row for row in rows if id(row) not in known]
                if not fresh:
                    present = {id(row) for row in rows}
                    count = sum(old is not new for i, (old, new) in known.items() if i in present)
                    for branch in log.branches.values():
                        found = (known[id(row)][1] for row in branch.rows)
                        branch.rows = [row for row in found if row is not None]
                    if count:
                        log.drop_notes()
                        log.commit(now)
                    return count
            for row in fresh:  # not under the lock, since it is anybody's function
                if id(row) not in known:
                    known[id(row)] = (row, redacted(row, redaction))

    def _known(self, session_id: str) -> Log:
        log = self._found(session_id)
        if log is None:
            raise unknown(session_id)
        return log
