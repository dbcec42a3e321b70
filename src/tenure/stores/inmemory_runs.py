"""Runs of the store in RAM: what they log before they end, their checkpoints, and their tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.memory import Owner
from tenure.messages import Message
from tenure.stores.base import Appended, Entry, Lease
from tenure.stores.checks import checked_lease, checked_session_id
from tenure.stores.inmemory_leases import Leasing
from tenure.stores.inmemory_log import (
    Log,
    LogBranch,
    LogRow,
    RunNotes,
    add_rows,
    appended,
    entry_of,
    extended,
    new_rows,
    unknown_to,
)
from tenure.stores.memory_checks import checked_writer
from tenure.stores.run_checks import (
    checked_call,
    checked_checkpoint,
    checked_keep_last,
    checked_run_id,
    checked_text,
    known_checkpoint,
    unknown_version,
)
from tenure.stores.run_records import (
    CallRecord,
    CheckpointRecord,
    NewCall,
    NewCheckpoint,
    RunRecord,
)


class Running(Leasing):
    """The part of the store that keeps what runs need until they end."""

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
        checked_run_id(run_id)
        checked_writer(owner)
        checked_text(input, "input")
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id) or self._create(session_id, [], 0, now)
            notes = log.notes_of(run_id)
            if notes.record is None:
                notes.record = RunRecord(
                    run_id=run_id,
                    owner=log.runs.setdefault(run_id, owner),
                    input=input,
                    revision=log.revision,
                    started_at=now,
                )
                log.notes[run_id] = log.notes.pop(run_id)  # as the last one that has begun
            return notes.record

    async def runs(self, session_id: str, *, unfinished: bool = False) -> list[RunRecord]:
        with self._locked():
            log = self._found(session_id)
            found = [notes.record for notes in log.notes.values()] if log is not None else []
        return [
            record
            for record in found
            if record is not None and not (unfinished and record.input is None)
        ]

    async def append_to_run(
        self,
        session_id: str,
        run_id: str,
        messages: Sequence[Message],
        *,
        owner: Owner | None = None,
        lease: Lease | None = None,
    ) -> int:
        new = new_rows(session_id, messages, run_id=run_id)
        if owner is not None:
            checked_writer(owner)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id) or self._create(session_id, [], 0, now)
            if owner is not None:
                log.runs.setdefault(run_id, owner)
            return _logged(log, run_id, new)

    async def run_entries(self, session_id: str, run_id: str) -> list[Entry]:
        checked_run_id(run_id)
        with self._locked():
            log = self._found(session_id)
            number = log.run_branch(run_id) if log is not None else None
            if log is None or number is None:
                return []
            return [entry_of(row) for row in log.branches[number].own]

    async def commit_run(
        self,
        session_id: str,
        run_id: str,
        *,
        is_failed: bool = False,
        lease: Lease | None = None,
    ) -> Appended:
        checked_run_id(run_id)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id)
            if log is None:
                return appended(session_id, log, 0)
            number = log.run_branch(run_id)
            own = log.branches[number].own if number is not None else []
            log.end_run(run_id, now)
            if not unknown_to(log.branches[log.branch].rows, own):
                return appended(session_id, log, 0)
            own = [replace(row, is_failed=is_failed) for row in own]
            return extended(session_id, log, own, now)

    async def discard_run(
        self, session_id: str, run_id: str, *, lease: Lease | None = None
    ) -> bool:
        checked_run_id(run_id)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id)
            return log is not None and log.end_run(run_id, now)

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
        new = new_rows(session_id, messages, run_id=run_id)
        name = checked_checkpoint(checkpoint).checkpoint_id
        keep_last = checked_keep_last(keep_last)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id)
            if log is not None and any(
                each.checkpoint_id == name for each in log.notes_of(run_id).checkpoints
            ):
                raise known_checkpoint(name)
            log = log or self._create(session_id, [], 0, now)
            notes = log.notes_of(run_id)
            notes.last_version += 1
            saved = CheckpointRecord(
                checkpoint_id=name,
                version=notes.last_version,
                node_path=checkpoint.node_path,
                scope=checkpoint.scope,
                state=checkpoint.state,
                logged=0 if notes.is_closed else _logged(log, run_id, new),
                created_at=now,
            )
            if notes.is_closed:
                return saved
            notes.checkpoints.append(saved)
            if keep_last is not None:
                notes.checkpoints = _pruned(notes.checkpoints, keep_last)
            return saved

    async def checkpoints(self, session_id: str, run_id: str) -> list[CheckpointRecord]:
        with self._locked():
            return list(self._notes(session_id, run_id).checkpoints)

    async def roll_back(
        self, session_id: str, run_id: str, *, version: int, lease: Lease | None = None
    ) -> None:
        with self._locked(checked_lease(lease, session_id)):
            notes = self._notes(session_id, run_id)
            if version != 0 and all(each.version != version for each in notes.checkpoints):
                raise unknown_version(run_id, version)
            notes.checkpoints = [each for each in notes.checkpoints if each.version <= version]
            notes.calls = [
                replace(each, is_rolled_back=True) if each.after >= version else each
                for each in notes.calls
            ]

    # --- the ledger ---

    async def begin_call(
        self, session_id: str, run_id: str, call: NewCall, *, lease: Lease | None = None
    ) -> CallRecord:
        checked_run_id(run_id)
        checked_call(call)
        with self._locked(checked_lease(lease, session_id)) as now:
            log = self._found(session_id) or self._create(session_id, [], 0, now)
            notes = log.notes_of(run_id)
            notes.last_call += 1
            begun = CallRecord(
                number=notes.last_call,
                call=call,
                after=notes.checkpoints[-1].version if notes.checkpoints else 0,
                outcome=None,
                is_rolled_back=False,
                is_undone=False,
                started_at=now,
                finished_at=None,
            )
            if not notes.is_closed:
                notes.calls.append(begun)
            return begun

    async def end_call(
        self,
        session_id: str,
        run_id: str,
        number: int,
        *,
        outcome: str,
        lease: Lease | None = None,
    ) -> None:
        checked_text(outcome, "outcome")
        with self._locked(checked_lease(lease, session_id)) as now:
            self._change_call(
                session_id,
                run_id,
                number,
                lambda call: replace(call, outcome=outcome, finished_at=now),
            )

    async def mark_undone(
        self, session_id: str, run_id: str, number: int, *, lease: Lease | None = None
    ) -> None:
        with self._locked(checked_lease(lease, session_id)):
            self._change_call(
                session_id,
                run_id,
                number,
                lambda call: replace(call, is_undone=call.is_rolled_back),
            )

    async def calls(self, session_id: str, run_id: str) -> list[CallRecord]:
        with self._locked():
            return list(self._notes(session_id, run_id).calls)

    # --- pieces ---

    def _change_call(
        self,
        session_id: str,
        run_id: str,
        number: int,
        change: Callable[[CallRecord], CallRecord],
    ) -> None:
        notes = self._notes(session_id, run_id)
        notes.calls = [change(each) if each.number == number else each for each in notes.calls]

    def _notes(self, session_id: str, run_id: str) -> RunNotes:
        """What is recorded of a run, to read or change; of one that is not there nothing is kept."""
        log = self._found(session_id)
        notes = log.notes.get(checked_run_id(run_id)) if log is not None else None
        return notes or RunNotes()

    def _found(self, session_id: str) -> Log | None:
        return self._shelf.logs.get((self.tenant, checked_session_id(session_id)))

    def _create(
        self,
        name: str,
        shared: list[LogRow],
        end: int,
        now: datetime,
        runs: Mapping[str, Owner] | None = None,
    ) -> Log:
        branches = {1: LogBranch(None, 0, None, shared)}
        known = dict(runs or {}) if end else {}
        log = Log(created_at=now, updated_at=now, branches=branches, last_seq=end, runs=known)
        self._shelf.logs[self.tenant, name] = log
        return log


def _logged(log: Log, run_id: str, new: Sequence[LogRow]) -> int:
    """Log rows on a run's branch, and make it if need be; returns how many it has of its own."""
    number = log.run_branch(run_id)
    if number is None:
        number = max(log.branches) + 1
        shared = list(log.branches[log.branch].rows)
        log.branches[number] = LogBranch(log.branch, log.last_seq, run_id, shared)
    branch = log.branches[number]
    own = branch.own
    branch.rows += add_rows(own, new, own[-1].seq if own else branch.parent_seq)
    return len(own)


def _pruned(checkpoints: Sequence[CheckpointRecord], keep_last: int) -> list[CheckpointRecord]:
    """The last checkpoints, and those that are the last one of their scope."""
    last = {each.scope: each.version for each in checkpoints}
    kept = {each.version for each in checkpoints[-keep_last:]} | set(last.values())
    return [each for each in checkpoints if each.version in kept]
