"""What one run writes down so that it can be resumed: its checkpoints, and how they are read.

A checkpoint's state is JSON: the messages of the prompt by their places (`layouts.py`), what the node
returned, registered values of the run's storage, and the tokens spent. `ledger.py` has the tool calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from tenure.errors import StoreError
from tenure.features.checkpoints import (
    FORMAT,
    Checkpoint,
    checked_format,
    usage_from_json,
    usage_to_json,
)
from tenure.features.layouts import Laid, Shelf
from tenure.messages import Json, Message, Usage
from tenure.recorded import from_recorded, to_recorded
from tenure.resuming import Point, Resumption, Rewound
from tenure.run import RunContext
from tenure.stores.base import Lease
from tenure.stores.run_base import CheckpointStore, RunStore
from tenure.stores.run_records import CheckpointRecord, NewCheckpoint, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaling:
    """What is written down.

    Args:
        values: The names in the run's storage that are saved.
        types: The classes whose instances can be in outputs and values.
        keep_last: How many checkpoints are kept; None for all.
    """

    values: Sequence[str] = ()
    types: Sequence[type] = ()
    keep_last: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Journal:
    """The checkpoints of one run.

    Args:
        store: Where they are.
        session_id: The conversation.
        record: The run.
        lease: Everything is written only while this is held.
        options: What is written down.
        revision: That of the history, where it began, if that is in another store.
    """

    store: CheckpointStore
    session_id: str
    record: RunRecord
    lease: Lease | None
    options: Journaling
    revision: int | None = None
    _turn: asyncio.Lock = field(init=False, repr=False, default_factory=asyncio.Lock)
    _log: list[Message] = field(init=False, repr=False, default_factory=list[Message])
    _shelf: Shelf | None = field(init=False, repr=False, default=None)  # once the history is there
    _is_in_doubt: bool = field(init=False, repr=False, default=False)  # what the store has logged
    _initial: list[str] | None = field(init=False, repr=False, default=None)

    # --- reading ---

    async def read(self) -> list[CheckpointRecord]:
        """Return the run's checkpoints, and know from then on what it has logged.

        Raises:
            InvalidValueError: A newer version of tenure has written the last one.
        """
        records = await self.records()
        await self._read_log()
        if records:
            last = _state_of(records[-1])
            self._initial = cast("list[str]", last["initial"])
            self.revision = cast("int | None", last.get("revision"))
        return records

    async def _read_log(self) -> None:
        if isinstance(self.store, RunStore):
            entries = await self.store.run_entries(self.session_id, self.record.run_id)
            self._log = [entry.message for entry in entries]
            self._shelf = None
        self._is_in_doubt = False

    async def records(self) -> list[CheckpointRecord]:
        """The run's checkpoints, by version."""
        return await self.store.checkpoints(self.session_id, self.record.run_id)

    def resumption(self, records: Sequence[CheckpointRecord]) -> Resumption | None:
        """How far the run has come; None without a checkpoint."""
        if not records:
            return None
        return Resumption(
            Point(path=r.node_path, version=r.version, restore=partial(self._restore, record=r))
            for r in records
        )

    def restore_messages(self, ctx: RunContext, record: CheckpointRecord) -> None:
        """Give a run the prompt and the values of a checkpoint."""
        self._give(ctx, _state_of(record))

    def _restore(self, ctx: RunContext, *, record: CheckpointRecord) -> object:
        state = _state_of(record)
        self._give(ctx, state)
        what = _output_of(record.node_path)
        return from_recorded(state["output"], what, types=self.options.types)

    def _give(self, ctx: RunContext, state: Mapping[str, Json]) -> None:
        shelf = self._place(ctx)
        prompt, dropped = shelf.take(state["messages"]), shelf.take(state["dropped"])
        initial = cast("list[str]", state["initial"])
        ctx.restore(messages=prompt.messages, dropped=dropped.messages, initial=initial)
        saved = cast("Mapping[str, Json]", state["values"])
        for name in self.options.values:
            ctx.storage.pop(name, None)
            if name in saved:
                what = f"The value {name!r} of the run's storage"
                ctx.storage[name] = from_recorded(saved[name], what, types=self.options.types)
        ctx.storage[self] = (prompt, dropped)

    def public(self, ctx: RunContext, record: CheckpointRecord) -> Checkpoint:
        """A checkpoint in one piece, while its run is going on."""
        return in_one_piece(self.session_id, self.record, record, self._place(ctx))

    def _place(self, ctx: RunContext) -> Shelf:
        if self._shelf is None:
            self._shelf = Shelf(ctx.system_prompt, ctx.as_stored, self._log)
        return self._shelf

    # --- writing ---

    async def save(
        self, ctx: RunContext, node_path: str, output: object, *, checkpoint_id: str
    ) -> CheckpointRecord:
        """Save what the run has come to, behind a node; the context is at this checkpoint then.

        Raises:
            InvalidValueError: The output or a value cannot be saved; the text names it.
        """
        state = self._state(ctx, node_path, output)
        is_branch = "/".join(ctx.branch_path) == node_path
        async with self._turn:  # what is logged gets the places that it is given here
            if ctx.is_rewound:
                raise Rewound
            if self._is_in_doubt:
                await self._read_log()
            shelf, new = self._place(ctx), list[Message]()
            before = cast("tuple[Laid, Laid]", ctx.storage.get(self, (Laid(), Laid())))
            prompt = shelf.lay(ctx.llm.prompt.messages, before[0], new)
            dropped = shelf.lay(ctx.llm.dropped, before[1], new)
            in_full = not isinstance(self.store, RunStore)  # which has no log to name places of
            state["messages"] = shelf.written(prompt, in_full=in_full)
            state["dropped"] = shelf.written(dropped, in_full=in_full)
            self._is_in_doubt = True  # a branch can be cancelled while this is being written
            record = await self.store.save_checkpoint(
                self.session_id,
                self.record.run_id,
                NewCheckpoint(
                    checkpoint_id=checkpoint_id,
                    node_path=node_path,
                    scope=node_path if is_branch else node_path.rpartition("/")[0],
                    state=json.dumps(state, ensure_ascii=True, sort_keys=True),
                ),
                messages=() if in_full else new,
                keep_last=self.options.keep_last,
                lease=self.lease,
            )
            shelf.logged(new)
            self._is_in_doubt = False
        ctx.storage[self] = (prompt, dropped)
        ctx.position = record.version
        return record

    async def roll_back(self, version: int) -> None:
        """Take the run back to a checkpoint. Only while nobody saves one."""
        await self.store.roll_back(
            self.session_id, self.record.run_id, version=version, lease=self.lease
        )

    def _state(self, ctx: RunContext, node_path: str, output: object) -> dict[str, Json]:
        types, storage = self.options.types, ctx.storage
        if self._initial is None:
            self._initial = [message.id for message in ctx.initial_messages]
        return {
            "format": FORMAT,
            "output": to_recorded(output, _output_of(node_path), types=types),
            "values": {
                name: to_recorded(
                    storage[name], f"The value {name!r} of the run's storage", types=types
                )
                for name in self.options.values
                if name in storage
            },
            "usage": usage_to_json(ctx.usage),
            "revision": self.revision,
            "initial": [*self._initial],
        }


def spent(record: CheckpointRecord) -> Usage:
    """The tokens that a run had spent at a checkpoint."""
    return usage_from_json(_state_of(record)["usage"])


def in_one_piece(
    session_id: str, run: RunRecord, record: CheckpointRecord, shelf: Shelf
) -> Checkpoint:
    """Return a checkpoint as a value of its own.

    Args:
        session_id: The conversation.
        run: The run.
        record: The checkpoint.
        shelf: Where the messages are that it names.
    """
    state = _state_of(record)
    shown = shelf.take(state["messages"]).messages
    return Checkpoint(
        checkpoint_id=record.checkpoint_id,
        session_id=session_id,
        run_id=run.run_id,
        version=record.version,
        node_path=record.node_path,
        created_at=record.created_at,
        input=run.input or "",
        output=state["output"],
        messages=tuple(message for message in shown if message is not shelf.own),
        values=cast("Mapping[str, Json]", state["values"]),
        usage=usage_from_json(state["usage"]),
        revision=run.revision,
    )


def _state_of(record: CheckpointRecord) -> dict[str, Json]:
    try:
        state = cast("dict[str, Json]", json.loads(record.state))
    except ValueError as exc:
        raise StoreError("A stored checkpoint is not JSON; it was damaged.") from exc
    checked_format(state)
    return state


def _output_of(node_path: str) -> str:
    return f"The output of the node {node_path!r}"
