"""What the code of a run can do with its checkpoints: make one, go back to one, go somewhere else.

`persistence.py` has the rest. Going back or elsewhere happens when the node that asks for it has returned,
or one in a branch beside it: what it returns is let go, parallel branches that are at work are cancelled,
and when nothing is at work any more, the strategy starts again and goes to the place that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from tenure.errors import InvalidValueError, UsageError
from tenure.events import CheckpointSaved, RunResult
from tenure.feature import Feature
from tenure.features.checkpoints import Checkpoint
from tenure.features.journal import Journal
from tenure.features.ledger import Ledger
from tenure.graph import START, Graph
from tenure.recorded import from_recorded
from tenure.resuming import Point, Resumption
from tenure.run import RunContext

if TYPE_CHECKING:
    from tenure.agent import AgentBase
    from tenure.messages import Message
    from tenure.stores.run_records import CheckpointRecord

RollbackStrategy: TypeAlias = Literal["everything", "message_history"]
"""What of a checkpoint a run goes on with: all of it behind its node, or its messages from the start."""

ROLLBACK_STRATEGIES: tuple[RollbackStrategy, ...] = ("everything", "message_history")


class Kept:
    """What one run has of its persistence."""

    def __init__(self, journal: Journal, ledger: Ledger) -> None:
        self.journal = journal
        self.ledger = ledger


class _Missing:
    """Stands for an argument that was not given."""


MISSING = _Missing()


class ExecutionPoints(Feature):
    """The part of `Persistence` that the code of a run uses."""

    _rollback_strategy: RollbackStrategy

    async def create_checkpoint(
        self,
        ctx: RunContext,
        output: object = None,
        *,
        node_path: str | None = None,
        checkpoint_id: str | None = None,
    ) -> Checkpoint:
        """Save a checkpoint now: one behind the node that calls this, as if it had returned already.

        What has been said in an LLM session that is still open is not in it.

        Args:
            ctx: The run.
            output: What the run goes on with when it is resumed from here: the node's output.
            node_path: Another node of the same graph, behind which it goes on then.
            checkpoint_id: Names the checkpoint; made up by default.

        Raises:
            InvalidValueError: The output or a value cannot be saved; or the id is taken.
            UnknownNodeError: The graph has no such node.
            UsageError: No node is being executed, or nothing is saved of this run.
        """
        kept = self._needed(ctx)
        if node_path is not None:
            _graph_of(ctx).require(node_path)
        path = node_path if node_path is not None else "/".join(ctx.node_path)
        if not path or ctx.is_opaque:
            raise UsageError(
                "A checkpoint is made by a node of a graph, while it is executed; a graph that a node's "
                "function calls is a part of that node: add it with subgraph()."
            )
        record = await self._save(ctx, kept, path, output, checkpoint_id=checkpoint_id)
        return kept.journal.public(ctx, record)

    async def rollback_to_checkpoint(
        self, ctx: RunContext, checkpoint_id: str
    ) -> Checkpoint | None:
        """Take the run back to one of its checkpoints, when the node that calls this has returned.

        Then later checkpoints are removed, and what tools have done since is undone, the last call first,
        by what `rollback_tools` has for them; when that fails, the run fails with `UndoFailedError`. Of
        `ctx.storage` the registered values are those of the checkpoint, and all others those from before
        the run. With `rollback_strategy="message_history"` the graph starts again from its beginning, with
        the checkpoint's messages.

        Returns:
            The checkpoint; None when the run has none of this id, and then nothing happens.

        Raises:
            UsageError: Nothing is saved of this run.
        """
        kept = self._needed(ctx)
        records = await kept.journal.records()
        found = next((r for r in records if r.checkpoint_id == checkpoint_id), None)
        return None if found is None else await self._taken_back(ctx, kept, found)

    async def rollback_to_latest_checkpoint(self, ctx: RunContext) -> Checkpoint | None:
        """The same with the last checkpoint that the run has; None when it has none."""
        kept = self._needed(ctx)
        records = await kept.journal.records()
        return await self._taken_back(ctx, kept, records[-1]) if records else None

    def set_execution_point(
        self,
        ctx: RunContext,
        node_path: str,
        *,
        input: object = MISSING,  # noqa: A002 # as everywhere
        output: object = MISSING,
        messages: Sequence[Message] | None = None,
    ) -> None:
        """Have the run go on somewhere else, when the node that calls this has returned.

        Nothing is saved or undone by it; the next node that returns has a checkpoint.

        Args:
            ctx: The run.
            node_path: The node: the graph and the nodes from the outside in, as in `NodeStarted.path`.
                One inside of a subgraph will do, one inside of parallel branches will not.
            input: Execute the node with this.
            output: Or go on behind the node, as if it had returned this.
            messages: The prompt then, without the agent's own system prompt; by default as it is now.

        Raises:
            UnknownNodeError: The graph has no such node.
            InvalidValueError: There is neither an input nor an output, or both.
        """
        if (input is MISSING) == (output is MISSING):
            raise InvalidValueError("Give either an input or an output to set_execution_point.")
        _graph_of(ctx).require(node_path)
        prompt, dropped, storage = ctx.llm.prompt.messages, ctx.llm.dropped, dict(ctx.storage)
        if messages is not None:
            prompt = with_system_prompt(ctx, messages)
        value = input if output is MISSING else output

        def restore(run: RunContext) -> object:
            run.restore(messages=prompt, dropped=dropped, initial=())
            run.storage = dict(storage)
            return value

        async def there() -> Resumption:
            if (kept := self._kept(ctx)) is not None:
                kept.ledger.forget()
            return Resumption(_forced(node_path, restore, is_input=output is MISSING))

        ctx.rewind(there)

    @staticmethod
    async def run_from_checkpoint(
        agent: AgentBase[Any],
        checkpoint: Checkpoint,
        text: str | None = None,
        session_id: str | None = None,
        *,
        rollback_strategy: RollbackStrategy = "everything",
        types: Iterable[type] = (),
    ) -> RunResult:
        """Start a new run of an agent from a checkpoint of any run, but for one in a parallel branch.

        The agent needs no `Persistence`.

        Where it has a `ChatMemory`, the history becomes what the checkpoint and the new run say; what was
        there beside that is in the archive. Where it has a `Persistence`, an unfinished run is given up.

        Args:
            agent: Its strategy is the graph.
            checkpoint: Where to start, such as one of `get_checkpoints`.
            text: With `"everything"`: what is said after the run, as in `run`; None for nothing. With
                `"message_history"`: what is said; None for what the checkpoint's run was given.
            session_id: The conversation; that of the checkpoint by default.
            rollback_strategy: See `Persistence`.
            types: See `Persistence`.

        Raises:
            UnknownNodeError: The graph has no such node.
            Exception: Whatever `run` raises.
        """
        checked_choice(rollback_strategy, ROLLBACK_STRATEGIES, "rollback_strategy")
        if checkpoint.is_tombstone:
            raise InvalidValueError("The checkpoint is a tombstone: its run has ended.")
        start = _FromCheckpoint(checkpoint, text, rollback_strategy, tuple(types))
        return await agent._run(  # pyright: ignore[reportPrivateUsage] # the run with one feature more
            checkpoint.input if text is None else text,
            checkpoint.session_id if session_id is None else session_id,
            features=[start, *agent._features],  # pyright: ignore[reportPrivateUsage]
        )

    # --- pieces ---

    def _kept(self, ctx: RunContext) -> Kept | None:
        return cast("Kept | None", ctx.storage.get(self))

    def _needed(self, ctx: RunContext) -> Kept:
        kept = self._kept(ctx)
        if kept is None:
            raise UsageError("Nothing is saved of a run without a session id; give run() one.")
        return kept

    async def _save(
        self, ctx: RunContext, kept: Kept, path: str, output: object, *, checkpoint_id: str | None
    ) -> CheckpointRecord:
        name = ctx.clock.new_id() if checkpoint_id is None else checkpoint_id
        record = await kept.journal.save(ctx, path, output, checkpoint_id=name)
        await ctx.send(CheckpointSaved(checkpoint_id=name, version=record.version, path=path))
        return record

    async def _taken_back(
        self, ctx: RunContext, kept: Kept, record: CheckpointRecord
    ) -> Checkpoint:
        journal = kept.journal
        public = journal.public(ctx, record)

        async def back() -> Resumption | None:
            await journal.roll_back(record.version)
            await kept.ledger.read()
            records = await journal.read()
            if self._rollback_strategy != "message_history":
                return journal.resumption(records)
            kept.ledger.forget()
            restore = partial(journal.restore_messages, record=records[-1])
            return at_the_start(ctx, restore)

        ctx.rewind(back)
        return public


class _FromCheckpoint(Feature):
    """Has a run start from a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        text: str | None,
        strategy: RollbackStrategy,
        types: tuple[type, ...],
    ) -> None:
        self._checkpoint = checkpoint
        self._text = text
        self._strategy = strategy
        self._types = types
        self._has_started = False

    async def before_run(self, ctx: RunContext) -> None:
        if self._has_started:  # this is what is said after it
            return
        self._has_started = True
        checkpoint = self._checkpoint
        if self._strategy == "message_history":
            ctx.resume(ctx.run_id, ctx.input, at_the_start(ctx, self._restore))
            return
        _graph_of(ctx).require(checkpoint.node_path)
        ctx.follow_up = self._text if self._text != checkpoint.input else None
        points = _forced(checkpoint.node_path, self._restored_output, is_input=False)
        ctx.resume(ctx.run_id, checkpoint.input, Resumption(points))

    def _restore(self, ctx: RunContext) -> None:
        messages = with_system_prompt(ctx, self._checkpoint.messages)
        ctx.restore(messages=messages, dropped=(), initial=())
        for name, value in self._checkpoint.values.items():
            what = f"The value {name!r} of the checkpoint"
            ctx.storage[name] = from_recorded(value, what, types=self._types)

    def _restored_output(self, ctx: RunContext) -> object:
        self._restore(ctx)
        return from_recorded(
            self._checkpoint.output, "The output of the checkpoint", types=self._types
        )


def checked_choice(value: str, allowed: Sequence[str], name: str) -> None:
    """Check that an argument is one of the texts that it may be.

    Raises:
        InvalidValueError: It is another one.
    """
    if value not in allowed:
        listed = " or ".join(repr(each) for each in allowed)
        raise InvalidValueError(f"{name}={value!r} must be {listed}.")


def at_the_start(ctx: RunContext, restore: Callable[[RunContext], object]) -> Resumption:
    """The beginning of the graph, with what `restore` gives the run."""

    def restored(run: RunContext) -> object:
        restore(run)
        return run.input

    return Resumption(_forced(f"{_graph_of(ctx).name}/{START}", restored, is_input=False))


def with_system_prompt(ctx: RunContext, messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages behind the agent's own system prompt."""
    own = () if ctx.system_prompt is None else (ctx.system_prompt,)
    return (*own, *messages)


def _forced(path: str, restore: Callable[[RunContext], object], *, is_input: bool) -> list[Point]:
    """The way to a node: into each subgraph that it is in, and there."""
    parts = path.split("/")
    ways = [
        Point(
            path="/".join(parts[:depth]),
            version=0,
            restore=lambda _: None,
            is_input=True,
            is_forced=True,
        )
        for depth in range(2, len(parts))
    ]
    there = Point(path=path, version=0, restore=restore, is_input=is_input, is_forced=True)
    return [*ways, there]


def _graph_of(ctx: RunContext) -> Graph[object, object]:
    strategy: object = ctx.strategy
    if not isinstance(strategy, Graph):
        raise UsageError("The agent's strategy is no graph, so that it has no nodes to go to.")
    return cast("Graph[object, object]", strategy)
