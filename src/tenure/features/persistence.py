"""Persistence: a run that was interrupted goes on where it was.

After each node of the agent's graph a checkpoint is saved. When the process dies, or the run fails or is
cancelled, the next run on the same conversation by the same agent (and user) first goes on with that one,
behind the last node that had returned: no node that has returned is executed again, and no tool call that
was recorded is made again. When a run has ended, its checkpoints are gone.

What was said to the run that finds an unfinished one is not lost: it is answered right after it, in a run
of its own, whose result is returned. Only when it is the same text as the unfinished run was given, it is
taken for that run tried again, and is not answered twice.

- **What is saved**: the prompt's messages, the node's output, the registered values of `ctx.storage`, the
  tokens spent. **What is not**: tools, model and params are the agent's as they are in the code; what a
  session has changed of those is lost with the process.
- **With `ChatMemory`**, whichever was installed first: the history is loaded as it was when the run began,
  the checkpoint's prompt takes its place, and in the end the whole run is stored, in one transaction with
  the end of its checkpoints if both use one store. While a run can be resumed, `on_failure="keep"` keeps
  nothing.
- **Parallel branches** each have checkpoints of their own; those that have returned are not run again.
- A run has to have a session id; without one nothing is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.errors import InvalidValueError, NothingToResumeError, UsageError
from tenure.events import RunResult, RunResumed
from tenure.feature import Feature
from tenure.features.chat_memory import ChatMemory
from tenure.features.checkpoints import Checkpoint
from tenure.features.execution_points import (
    ROLLBACK_STRATEGIES,
    ExecutionPoints,
    Kept,
    RollbackStrategy,
    at_the_start,
    checked_choice,
)
from tenure.features.journal import Journal, Journaling, in_one_piece, spent
from tenure.features.layouts import Shelf
from tenure.features.ledger import Ledger, RollbackToolRegistry
from tenure.features.own_storage import CheckpointStorage, OwnStorage, turns_of
from tenure.graph import Graph
from tenure.instances import classes_in
from tenure.run import RunContext
from tenure.run_tools import PlacedCall, ToolExecution
from tenure.stores import InMemoryStore, Store, open_store
from tenure.stores.base import Lease
from tenure.stores.run_base import CheckpointStore
from tenure.stores.run_checks import checked_keep_last
from tenure.stores.run_records import RunRecord
from tenure.tools import ToolOutcome

if TYPE_CHECKING:
    from tenure.memory import Owner

Resume: TypeAlias = Literal["auto", "never", "require"]
"""Whether a run goes on with one that had not ended; see `Persistence`."""


class Persistence(ExecutionPoints):
    """Saves checkpoints of runs, and resumes runs that have not ended."""

    runs_after: ClassVar[tuple[type[Feature], ...]] = (ChatMemory,)

    def __init__(
        self,
        storage: Store | CheckpointStorage | str | None = None,
        automatic: bool = True,
        *,
        resume: Resume = "auto",
        rollback_strategy: RollbackStrategy = "everything",
        rollback_tools: RollbackToolRegistry | None = None,
        values: Iterable[str] = (),
        types: Iterable[type] = (),
        keep_last: int | None = None,
        max_age: timedelta | None = None,
    ) -> None:
        """Say where checkpoints are, and what becomes of runs that have not ended.

        Args:
            storage: A store or its URL; or an object of yours with `save_checkpoint`, `get_checkpoints`
                and `get_latest_checkpoint` (see `CheckpointStorage`), which is given whole checkpoints.
                By default the store of the agent; if that has none, that of its `ChatMemory`; else RAM.
            automatic: Whether there is a checkpoint after each node. Else there are only those that
                `create_checkpoint` makes, and what comes after the last one is done again.
            resume: `"auto"` goes on with an unfinished run, if there is one. `"never"` gives it up: its
                checkpoints are removed. `"require"` raises when there is none.
            rollback_strategy: `"everything"` goes on behind the checkpoint's node. `"message_history"`
                takes only the messages (and values): the graph starts from its beginning, with what was
                said now.
            rollback_tools: What undoes the effects of tools when a run is taken back.
            values: The names in `ctx.storage` whose values are saved with each checkpoint.
            types: The classes (dataclasses, NamedTuples, enums, pydantic models) whose instances nodes
                return, or are in `values`; a checkpoint holds no other ones.
            keep_last: Keep only so many checkpoints of a run; what resuming needs is kept anyway.
            max_age: Give up an unfinished run whose last checkpoint is older, instead of resuming it.

        Raises:
            InvalidValueError: One of them is none of these.
        """
        if isinstance(storage, str):
            storage = open_store(storage)
        elif not isinstance(storage, (Store, CheckpointStorage, NoneType)):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(
                f"{storage!r} cannot keep checkpoints; give a URL such as 'sqlite:///chat.db', a store, "
                "or an object with save_checkpoint, get_checkpoints and get_latest_checkpoint."
            )
        checked_choice(resume, ("auto", "never", "require"), "resume")
        checked_choice(rollback_strategy, ROLLBACK_STRATEGIES, "rollback_strategy")
        self._given = storage
        self._automatic = automatic
        self._resume: Resume = resume
        self._rollback_strategy: RollbackStrategy = rollback_strategy
        self._undo = rollback_tools
        self._max_age = max_age
        self._journaling = Journaling(
            values=tuple(values),
            types=tuple(types),
            keep_last=checked_keep_last(keep_last),
        )
        self._owner: Owner | None = None
        self._memory: ChatMemory | None = None
        self._in_ram = InMemoryStore()  # if there is nothing else

    # --- unfinished runs ---

    async def get_checkpoints(self, session_id: str) -> list[Checkpoint]:
        """Return the checkpoints of a conversation's unfinished run, by version; each has all messages.

        Of the runs of the agent (and user) that this is installed in; empty when all have ended.
        """
        store = await self._opened(session_id)
        found: list[Checkpoint] = []
        for run in await self._own_runs(store, session_id):
            shelf = Shelf()
            if isinstance(store, Store):
                history = await store.read(session_id, revision=run.revision)
                logged = await store.run_entries(session_id, run.run_id)
                shelf = Shelf(None, history, [entry.message for entry in logged])
            for record in await store.checkpoints(session_id, run.run_id):
                found.append(in_one_piece(session_id, run, record, shelf))
        return found

    async def get_latest_checkpoint(self, session_id: str) -> Checkpoint | None:
        """Return the last checkpoint of a conversation's unfinished run; None if there is none."""
        found = await self.get_checkpoints(session_id)
        return found[-1] if found else None

    async def give_up(self, session_id: str) -> bool:
        """Remove what a conversation's unfinished run has saved, so that it is not resumed.

        Of the runs of the agent (and user) that this is installed in. What tools have done is not undone.

        Returns:
            Whether there was one.
        """
        store = await self._opened(session_id)
        runs = await self._own_runs(store, session_id)
        for run in runs:
            await store.discard_run(session_id, run.run_id)
        return bool(runs)

    async def _opened(self, session_id: str) -> CheckpointStore:
        storage = self._storage_with(self._memory)
        return await _opened(storage, session_id, self._whose, 0, SYSTEM_CLOCK)

    async def _own_runs(self, store: CheckpointStore, session_id: str) -> list[RunRecord]:
        runs = await store.runs(session_id, unfinished=True)
        return [run for run in runs if run.owner == self._owner]

    # --- hooks ---

    def on_install(self, store: Store | None, owner: Owner) -> None:
        """Take the agent's store when no other storage was given.

        Raises:
            InvalidValueError: It is in another agent already.
        """
        if self._owner not in (None, owner):
            raise InvalidValueError(
                f"This Persistence is that of the agent {self._whose.agent_id!r}; make another one for "
                "each agent and user."
            )
        if self._given is None:
            self._given = store
        self._owner = owner

    def beside(self, features: Sequence[Feature]) -> None:
        """Know the agent's chat memory."""
        self._memory = _chat_memory(features)

    async def before_run(self, ctx: RunContext) -> None:
        """Wait for the conversation; begin a run, or go on with one that has not ended.

        Raises:
            UsageError: The strategy is no graph.
            NothingToResumeError: `resume="require"`, and there is no unfinished run.
            UndoFailedError: A run was taken back, and a tool's effect could not be undone.
        """
        if ctx.session_id is None:
            return
        if not isinstance(ctx.strategy, Graph):
            raise UsageError(
                "Persistence saves a checkpoint after each node of a graph, and this agent's strategy "
                "is none; make it a tenure.Graph, or leave it out for the default one."
            )
        memory = _chat_memory(ctx.features)
        place = memory.provider if memory is not None else None
        storage = self._storage_with(memory)
        held = await ctx.hold(turns_of(storage, place))
        revision = await _revision_of(place, ctx.session_id) if place is not storage else 0
        store = await _opened(storage, ctx.session_id, ctx.owner, revision, ctx.clock)
        lease = held.lease if held.store is store else None
        record = await self._unfinished(ctx, store, lease)
        # A run that follows the one that was wanted, or begins at a checkpoint, needs no other.
        is_free = ctx.is_follow_up or ctx.resumption is not None
        if self._resume == "require" and record is None and not is_free:
            raise NothingToResumeError(
                f"There is no unfinished run of the agent {ctx.owner.agent_id!r} in the conversation "
                f"{ctx.session_id!r}, and resume='require'."
            )
        is_new = record is None
        if record is None:
            record = await store.begin_run(
                ctx.session_id, ctx.run_id, owner=ctx.owner, input=ctx.input, lease=lease
            )
        kept = self._kept_for(ctx, store, record, lease)
        ctx.storage[self] = kept
        ctx.ends_in, ctx.is_resumable = store, self._resume != "never"
        if not is_new:
            await self._resumed(ctx, kept)
        elif isinstance(place, Store) and place is not store:
            kept.journal.revision = revision
        is_in_record = place is store or isinstance(store, OwnStorage)
        ctx.revision = record.revision if is_in_record else kept.journal.revision

    async def after_node(self, ctx: RunContext, path: str, output: object) -> None:
        """Save a checkpoint."""
        kept = self._kept(ctx)
        if kept is not None and self._automatic and not ctx.is_opaque:
            await self._save(ctx, kept, path, output, checkpoint_id=None)

    async def known_outcome(self, ctx: RunContext, placed: PlacedCall) -> ToolOutcome | None:
        """What has come of a tool call before the run was resumed."""
        kept = self._kept(ctx)
        return None if kept is None else await kept.ledger.known_outcome(ctx, placed)

    async def execute_tool(
        self, ctx: RunContext, placed: PlacedCall, execute: ToolExecution
    ) -> ToolOutcome:
        """Record a tool call before it is made, and what has come of it."""
        kept = self._kept(ctx)
        return await (execute() if kept is None else kept.ledger.execute(ctx, placed, execute))

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        """Remove what the run has saved, unless that was done with its messages."""
        kept = self._kept(ctx)
        if kept is None:
            return
        memory, journal = _chat_memory(ctx.features), kept.journal
        if memory is None or memory.provider is not journal.store:
            await journal.store.discard_run(
                journal.session_id, journal.record.run_id, lease=journal.lease
            )

    # --- pieces ---

    def _storage_with(self, memory: ChatMemory | None) -> Store | CheckpointStorage:
        """Where checkpoints are, with this chat memory."""
        if self._given is not None:
            return self._given
        place = memory.provider if memory is not None else None
        return place if isinstance(place, Store) else self._in_ram

    async def _unfinished(
        self, ctx: RunContext, store: CheckpointStore, lease: Lease | None
    ) -> RunRecord | None:
        """The run to go on with; those that are given up are removed."""
        assert ctx.session_id is not None
        found: RunRecord | None = None
        for record in await store.runs(ctx.session_id, unfinished=True):
            if record.owner != ctx.owner:
                continue
            if self._resume == "never" or ctx.resumption is not None:
                is_given_up = True
            else:
                is_given_up = await self._is_too_old(ctx, store, record)
            if is_given_up:
                await store.discard_run(ctx.session_id, record.run_id, lease=lease)
            else:
                found = found or record
        return found

    async def _is_too_old(self, ctx: RunContext, store: CheckpointStore, record: RunRecord) -> bool:
        if self._max_age is None or ctx.session_id is None:
            return False
        checkpoints = await store.checkpoints(ctx.session_id, record.run_id)
        last = checkpoints[-1].created_at if checkpoints else record.started_at
        return ctx.clock.now() - last > self._max_age

    async def _resumed(self, ctx: RunContext, kept: Kept) -> None:
        """Have a run go on with the one that was found."""
        journal, record = kept.journal, kept.journal.record
        records = await journal.read()
        await kept.ledger.read()
        if records:
            ctx.count_usage(spent(records[-1]))
        if records and self._rollback_strategy == "message_history":
            resumption = at_the_start(ctx, partial(journal.restore_messages, record=records[-1]))
            kept.ledger.forget()
            ctx.resume(record.run_id, ctx.input, resumption)
        else:
            text = record.input or ""
            ctx.follow_up = ctx.input if ctx.input != text else None
            ctx.resume(record.run_id, text, journal.resumption(records))
        path = records[-1].node_path if records else ""
        await ctx.send(
            RunResumed(run_id=ctx.run_id, session_id=ctx.session_id, input=ctx.input, path=path)
        )

    def _kept_for(
        self, ctx: RunContext, store: CheckpointStore, record: RunRecord, lease: Lease | None
    ) -> Kept:
        assert ctx.session_id is not None
        types = [*self._journaling.types]
        if ctx.output_schema is not None:
            types += [cls for cls in classes_in(ctx.output_schema.output) if cls not in types]
        journal = Journal(
            store=store,
            session_id=ctx.session_id,
            record=record,
            lease=lease,
            options=replace(self._journaling, types=types),
        )
        ledger = Ledger(
            store=store,
            session_id=ctx.session_id,
            run_id=record.run_id,
            lease=lease,
            types=types,
            undo=self._undo,
        )
        return Kept(journal, ledger)

    @property
    def _whose(self) -> Owner:
        if self._owner is None:
            raise UsageError(
                "This Persistence is in no agent yet, so that nobody knows whose runs."
            )
        return self._owner


async def _opened(
    storage: Store | CheckpointStorage, session_id: str, owner: Owner, revision: int, clock: Clock
) -> CheckpointStore:
    """Where a conversation's checkpoints are; `revision` is that of its history now."""
    if isinstance(storage, Store):
        return storage
    own = OwnStorage(storage, owner, revision, clock)
    await own.load(session_id)
    return own


async def _revision_of(place: object, session_id: str) -> int:
    """The revision of a history, if it is in a store."""
    found = await place.conversation(session_id) if isinstance(place, Store) else None
    return found.revision if found is not None else 0


def _chat_memory(features: Iterable[Feature]) -> ChatMemory | None:
    return next((each for each in features if isinstance(each, ChatMemory)), None)
