"""Checkpoints in anybody's storage: an object with three methods, which is given whole checkpoints.

A checkpoint that is given to such a storage holds all that a run needs to go on: the prompt itself, and
what is known of the run's tool calls. So one is saved when the run begins, after each node, and again
before and after each tool call; each has a higher version than all before it in its conversation. When a
run has ended, a tombstone is saved: a checkpoint that says so.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Protocol, cast, runtime_checkable
from weakref import WeakValueDictionary

from tenure.clock import Clock
from tenure.codec import to_dict
from tenure.errors import InvalidValueError
from tenure.features.checkpoints import FORMAT, Checkpoint, usage_from_json, usage_to_json
from tenure.features.layouts import Shelf
from tenure.memory import Owner
from tenure.messages import Json, Message
from tenure.signatures import awaited
from tenure.stores import InMemoryStore, Store
from tenure.stores.base import Lease
from tenure.stores.run_base import CheckpointStore
from tenure.stores.run_checks import known_checkpoint
from tenure.stores.run_records import (
    CallRecord,
    CheckpointRecord,
    NewCall,
    NewCheckpoint,
    RunRecord,
)


@runtime_checkable
class CheckpointStorage(Protocol):
    """Anybody's place to keep checkpoints. Each method may be sync or async.

    `Checkpoint.to_json` and `from_json` turn a checkpoint into a text and back.
    """

    def save_checkpoint(self, session_id: str, checkpoint: Checkpoint) -> object:
        """Keep a checkpoint. When this has returned, it must survive the death of the process."""
        ...

    def get_checkpoints(
        self, session_id: str
    ) -> Sequence[Checkpoint] | Awaitable[Sequence[Checkpoint]]:
        """Return the checkpoints of a conversation, in any order: all of the runs that have not ended."""
        ...

    def get_latest_checkpoint(
        self, session_id: str
    ) -> Checkpoint | Awaitable[Checkpoint | None] | None:
        """Return the one of the highest version, be it a tombstone; None when there is none."""
        ...


_turns: WeakValueDictionary[int, InMemoryStore] = WeakValueDictionary()
"""By the id of a storage: where its runs wait for each other."""


def turns_of(storage: Store | CheckpointStorage, place: object) -> Store:
    """Where a run waits for its conversation: where its checkpoints or its history are.

    Args:
        storage: Where its checkpoints are.
        place: Where its history is.
    """
    if isinstance(storage, Store):
        return storage
    if isinstance(place, Store):
        return place
    return _turns.setdefault(id(storage), InMemoryStore())


@dataclass(eq=False)
class OwnStorage(CheckpointStore):
    """One conversation's runs of one owner, in RAM, and in somebody's storage with every change.

    Args:
        storage: The storage.
        owner: Whose runs are looked at.
        revision: That of the conversation now, for runs that begin.
        clock: Where times and ids come from.
    """

    storage: CheckpointStorage
    owner: Owner
    revision: int
    clock: Clock
    _version: int = field(init=False, default=0)  # the highest that was ever saved
    _record: RunRecord | None = field(init=False, default=None)
    _checkpoints: list[CheckpointRecord] = field(init=False, default_factory=list[CheckpointRecord])
    _calls: list[CallRecord] = field(init=False, default_factory=list[CallRecord])

    async def load(self, session_id: str) -> None:
        """Read what the storage has.

        Raises:
            InvalidValueError: It gave something else than checkpoints.
        """
        latest = await awaited(self.storage.get_latest_checkpoint(session_id))
        if latest is None:
            return
        self._version = _checked(latest, self.storage).version
        found = await awaited(self.storage.get_checkpoints(session_id))
        known = [_checked(each, self.storage) for each in cast("Sequence[object]", found)]
        own = sorted(
            (each for each in known if _owner_of(each) == self.owner), key=lambda each: each.version
        )
        if not own or own[-1].is_tombstone:
            return
        last = own[-1]
        own = [each for each in own if each.run_id == last.run_id]
        self._record = RunRecord(
            run_id=last.run_id,
            owner=self.owner,
            input=last.input,
            revision=last.revision,
            started_at=own[0].created_at,
        )
        self._calls = [_call_of(data) for data in cast("list[Json]", last.state["calls"])]
        for each in own:
            self._take(each)

    def _take(self, checkpoint: Checkpoint) -> None:
        """Know a checkpoint, in the order in which they were saved."""
        if checkpoint.replaces_after is not None:
            self._drop_after(checkpoint.replaces_after)
        version = cast("int", checkpoint.state["version"])
        if version > (self._checkpoints[-1].version if self._checkpoints else 0):
            self._checkpoints.append(_record_of(checkpoint, version))

    def _drop_after(self, version: int) -> None:
        self._checkpoints = [each for each in self._checkpoints if each.version <= version]

    # --- the run ---

    async def begin_run(
        self,
        session_id: str,
        run_id: str,
        *,
        owner: Owner,
        input: str,  # noqa: A002 # what it is called everywhere
        lease: Lease | None = None,
    ) -> RunRecord:
        self._record = RunRecord(
            run_id=run_id,
            owner=owner,
            input=input,
            revision=self.revision,
            started_at=self.clock.now(),
        )
        self._checkpoints, self._calls = [], []
        await self._save(session_id)
        return self._record

    async def runs(self, session_id: str, *, unfinished: bool = False) -> list[RunRecord]:
        return [] if self._record is None else [self._record]

    async def discard_run(
        self, session_id: str, run_id: str, *, lease: Lease | None = None
    ) -> bool:
        if self._record is None:
            return False
        self._checkpoints, self._calls = [], []
        await self._save(session_id, is_tombstone=True)
        self._record = None
        return True

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
        if any(each.checkpoint_id == checkpoint.checkpoint_id for each in self._checkpoints):
            raise known_checkpoint(checkpoint.checkpoint_id)
        record = CheckpointRecord(
            checkpoint_id=checkpoint.checkpoint_id,
            version=self._version + 1,
            node_path=checkpoint.node_path,
            scope=checkpoint.scope,
            state=checkpoint.state,
            logged=0,
            created_at=self.clock.now(),
        )
        self._checkpoints.append(record)
        await self._save(session_id)
        return record

    async def checkpoints(self, session_id: str, run_id: str) -> list[CheckpointRecord]:
        return [*self._checkpoints]

    async def roll_back(
        self, session_id: str, run_id: str, *, version: int, lease: Lease | None = None
    ) -> None:
        self._drop_after(version)
        self._calls = [
            replace(call, is_rolled_back=True) if call.after >= version else call
            for call in self._calls
        ]
        await self._save(session_id, replaces_after=version)

    # --- the ledger ---

    async def begin_call(
        self, session_id: str, run_id: str, call: NewCall, *, lease: Lease | None = None
    ) -> CallRecord:
        record = CallRecord(
            number=len(self._calls) + 1,
            call=call,
            after=self._checkpoints[-1].version if self._checkpoints else 0,
            outcome=None,
            is_rolled_back=False,
            is_undone=False,
            started_at=self.clock.now(),
            finished_at=None,
        )
        self._calls.append(record)
        await self._save(session_id)
        return record

    async def end_call(
        self,
        session_id: str,
        run_id: str,
        number: int,
        *,
        outcome: str,
        lease: Lease | None = None,
    ) -> None:
        call = self._calls[number - 1]
        self._calls[number - 1] = replace(call, outcome=outcome, finished_at=self.clock.now())
        await self._save(session_id)

    async def mark_undone(
        self, session_id: str, run_id: str, number: int, *, lease: Lease | None = None
    ) -> None:
        self._calls[number - 1] = replace(self._calls[number - 1], is_undone=True)
        await self._save(session_id)

    async def calls(self, session_id: str, run_id: str) -> list[CallRecord]:
        return [*self._calls]

    # --- the storage ---

    async def _save(
        self, session_id: str, *, is_tombstone: bool = False, replaces_after: int | None = None
    ) -> None:
        """Give the storage all that is known now."""
        assert self._record is not None
        self._version += 1
        last = self._checkpoints[-1] if self._checkpoints else None
        is_new = last is not None and last.version == self._version
        checkpoint = Checkpoint(
            checkpoint_id=last.checkpoint_id if last and is_new else self.clock.new_id(),
            session_id=session_id,
            run_id=self._record.run_id,
            version=self._version,
            node_path=last.node_path if last is not None else "",
            created_at=self.clock.now(),
            input="" if is_tombstone else self._record.input or "",
            is_tombstone=is_tombstone,
            revision=self._record.revision,
            replaces_after=replaces_after,
            state={
                "agent_id": self.owner.agent_id,
                "user_id": self.owner.user_id,
                "checkpoint_id": last.checkpoint_id if last is not None else None,
                "version": last.version if last is not None else 0,
                "scope": last.scope if last is not None else "",
                "calls": [_call_to_json(call) for call in self._calls],
            },
        )
        if last is not None:
            checkpoint = _with_state(checkpoint, last)
        await awaited(self.storage.save_checkpoint(session_id, checkpoint))


def _with_state(checkpoint: Checkpoint, record: CheckpointRecord) -> Checkpoint:
    """A checkpoint with the prompt and the rest of what the journal has written."""
    state = cast("dict[str, Json]", json.loads(record.state))
    written = cast("list[Json]", state["messages"])
    return replace(
        checkpoint,
        output=state["output"],
        messages=Shelf().take(written).messages,
        values=cast("dict[str, Json]", state["values"]),
        usage=usage_from_json(state["usage"]),
        state={
            **checkpoint.state,
            "dropped": state["dropped"],
            "initial": state["initial"],
            "has_system_prompt": len(written) > 0 and written[0] == ["own"],
        },
    )


def _record_of(checkpoint: Checkpoint, version: int) -> CheckpointRecord:
    """What the journal had written of a checkpoint."""
    own: list[Json] = [["own"]] if checkpoint.state["has_system_prompt"] else []
    state: dict[str, Json] = {
        "format": FORMAT,
        "output": checkpoint.output,
        "messages": [*own, *(to_dict(message) for message in checkpoint.messages)],
        "values": dict(checkpoint.values),
        "usage": usage_to_json(checkpoint.usage),
        "dropped": checkpoint.state["dropped"],
        "initial": checkpoint.state["initial"],
    }
    return CheckpointRecord(
        checkpoint_id=cast("str", checkpoint.state["checkpoint_id"]),
        version=version,
        node_path=checkpoint.node_path,
        scope=cast("str", checkpoint.state["scope"]),
        state=json.dumps(state),
        logged=0,
        created_at=checkpoint.created_at,
    )


def _call_to_json(record: CallRecord) -> dict[str, Json]:
    data = asdict(record)
    for name in ("started_at", "finished_at"):
        data[name] = data[name].isoformat() if data[name] is not None else None
    return data


def _call_of(data: Json) -> CallRecord:
    fields = dict(cast("Mapping[str, Json]", data))
    call = NewCall(**cast("dict[str, str]", fields.pop("call")))  # pyright: ignore[reportArgumentType]
    for name in ("started_at", "finished_at"):
        text = cast("str | None", fields[name])
        fields[name] = datetime.fromisoformat(text) if text is not None else None  # pyright: ignore[reportArgumentType]
    return CallRecord(call=call, **fields)  # pyright: ignore[reportArgumentType]


def _owner_of(checkpoint: Checkpoint) -> Owner:
    return Owner(
        agent_id=cast("str", checkpoint.state.get("agent_id", "")),
        user_id=cast("str | None", checkpoint.state.get("user_id")),
    )


def _checked(found: object, storage: CheckpointStorage) -> Checkpoint:
    if not isinstance(found, Checkpoint):
        raise InvalidValueError(
            f"The storage {type(storage).__name__} gave an object of type {type(found).__name__}, and "
            "not a tenure.Checkpoint; return what it was given to keep, or Checkpoint.from_json(text)."
        )
    return found
