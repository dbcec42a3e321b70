"""Runs, checkpoints and tool calls in an SQLite file. `run_base.py` says what the operations promise.

What they do is in `sqlite_runs.py` and `sqlite_checkpoints.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.clock import Clock
from tenure.memory import Owner
from tenure.messages import Message
from tenure.stores import sqlite_checkpoints as checkpoints
from tenure.stores import sqlite_runs as runs
from tenure.stores.base import Appended, Entry, Lease
from tenure.stores.checks import checked_lease, checked_session_id
from tenure.stores.memory_checks import checked_writer
from tenure.stores.run_checks import (
    checked_call,
    checked_checkpoint,
    checked_keep_last,
    checked_number,
    checked_run_id,
    checked_text,
)
from tenure.stores.run_records import (
    CallRecord,
    CheckpointRecord,
    NewCall,
    NewCheckpoint,
    RunRecord,
)
from tenure.stores.sqlite_media import pack_all
from tenure.stores.sqlite_operations import Operating


class Running(Operating):
    """The part of the store that keeps what runs need until they end."""

    _clock: Clock

    # --- the run and its log ---

    async def begin_run(
        self,
        session_id: str,
        run_id: str,
        *,
        owner: Owner,
        input: str,  # noqa: A002 # what it is called everywhere
        lease: Lease | None = None,
    ) -> RunRecord:
        return await self._write(
            runs.begin_run,
            *_names(session_id, run_id),
            owner=checked_writer(owner),
            input=runs.as_bytes(checked_text(input, "input")),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def runs(self, session_id: str, *, unfinished: bool = False) -> list[RunRecord]:
        return await self._read(runs.runs, checked_session_id(session_id), unfinished=unfinished)

    async def append_to_run(
        self,
        session_id: str,
        run_id: str,
        messages: Sequence[Message],
        *,
        owner: Owner | None = None,
        lease: Lease | None = None,
    ) -> int:
        return await self._write(
            runs.append_to_run,
            *_names(session_id, run_id),
            pack_all(messages),
            owner=checked_writer(owner) if owner is not None else None,
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def run_entries(self, session_id: str, run_id: str) -> list[Entry]:
        return await self._read(runs.run_entries, *_names(session_id, run_id))

    async def commit_run(
        self,
        session_id: str,
        run_id: str,
        *,
        is_failed: bool = False,
        lease: Lease | None = None,
    ) -> Appended:
        return await self._write(
            runs.commit_run,
            *_names(session_id, run_id),
            is_failed=is_failed,
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def discard_run(
        self, session_id: str, run_id: str, *, lease: Lease | None = None
    ) -> bool:
        return await self._erasing(
            runs.discard_run,
            *_names(session_id, run_id),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    # --- checkpoints ---

    async def save_checkpoint(
        self,
        session_id: str,
        run_id: str,
        checkpoint: NewCheckpoint,
        *,
        messages: Sequence[Message] = (),
        keep_last: int | None = None,
        lease: Lease | None = None,
    ) -> CheckpointRecord:
        return await self._write(
            checkpoints.save_checkpoint,
            *_names(session_id, run_id),
            checked_checkpoint(checkpoint),
            pack_all(messages),
            keep_last=checked_keep_last(keep_last),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def checkpoints(self, session_id: str, run_id: str) -> list[CheckpointRecord]:
        return await self._read(checkpoints.checkpoints, *_names(session_id, run_id))

    async def roll_back(
        self, session_id: str, run_id: str, *, version: int, lease: Lease | None = None
    ) -> None:
        await self._write(
            checkpoints.roll_back,
            *_names(session_id, run_id),
            version=checked_number(version),
            lease=checked_lease(lease, session_id),
        )

    # --- the ledger ---

    async def begin_call(
        self, session_id: str, run_id: str, call: NewCall, *, lease: Lease | None = None
    ) -> CallRecord:
        return await self._write(
            checkpoints.begin_call,
            *_names(session_id, run_id),
            checked_call(call),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def end_call(
        self,
        session_id: str,
        run_id: str,
        number: int,
        *,
        outcome: str,
        lease: Lease | None = None,
    ) -> None:
        await self._write(
            checkpoints.end_call,
            *_names(session_id, run_id),
            checked_number(number),
            outcome=checked_text(outcome, "outcome"),
            lease=checked_lease(lease, session_id),
            clock=self._clock,
        )

    async def mark_undone(
        self, session_id: str, run_id: str, number: int, *, lease: Lease | None = None
    ) -> None:
        await self._write(
            checkpoints.mark_undone,
            *_names(session_id, run_id),
            checked_number(number),
            lease=checked_lease(lease, session_id),
        )

    async def calls(self, session_id: str, run_id: str) -> list[CallRecord]:
        return await self._read(checkpoints.calls, *_names(session_id, run_id))


def _names(session_id: str, run_id: str) -> tuple[str, str]:
    return checked_session_id(session_id), checked_run_id(run_id)
