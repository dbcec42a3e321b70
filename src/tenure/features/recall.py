"""LongTermMemory: the agent recalls what may help before it answers, and remembers what was said.

When a run begins, the owner's memories are searched once for what the user says, and the best go into the
run's requests as one block of data in front of it (`recalled.py`). The block is part of no history. What
the model is shown already is not recalled: not what the window has, nor the question itself.

When a run has succeeded, its turn is remembered, in the same transaction as its messages where `ChatMemory`
keeps them in the same store and the memories are the agent's own; otherwise right after them. Of a run that
failed nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, cast

from tenure.compression import at_least
from tenure.errors import EmbeddingError, InvalidValueError
from tenure.events import MemoriesRecalled, MemoriesStored, RunResult
from tenure.feature import Feature
from tenure.features.chat_memory import ChatMemory
from tenure.features.ingestion import Ingest, Turn, checked_ingest, texts_of
from tenure.features.recall_tools import recall_tools_of
from tenure.marks import is_summary
from tenure.memory import Memory, MemoryFilter, NewMemory, Owner, Provenance
from tenure.recalled import recalled_block
from tenure.run import RunContext
from tenure.stores import InMemoryStore, Store
from tenure.stores.memory_base import MemoryQuery
from tenure.stores.memory_checks import checked_labels, refuse_writing

if TYPE_CHECKING:
    from tenure.embedding import EmbedderSpec
    from tenure.memories import Memories
    from tenure.messages import Message, ToolCall
    from tenure.tools import Tool

TOP_K = 5
"""How many memories are recalled at most, by default; a guess."""

BUDGET = 600
"""How many tokens the block of them may cost, by default; a guess: five turns of a chat."""

_SHOWN = 100  # how many of the best may be in the window already; beyond that fewer are recalled


@dataclass(slots=True)
class _Recall:
    """What one run has of its owner's memories."""

    noted: list[str] = field(default_factory=list[str])  # by the model, with a tool
    new: list[NewMemory] | None = None  # all that is to be remembered, once that is known
    is_committed: bool = False  # whether they were stored with the run's messages
    is_over: bool = False  # whether the run has ended, so that nothing more is remembered with it


class LongTermMemory(Feature):
    """Recalls memories for each run, and remembers its turn."""

    runs_after: ClassVar[tuple[type[Feature], ...]] = (ChatMemory,)

    def __init__(
        self,
        memories: Memories | None = None,
        *,
        embedder: EmbedderSpec = "auto",
        top_k: int = TOP_K,
        budget: int = BUDGET,
        min_score: float = 0.0,
        graph_id: str | None = None,
        task_id: str | None = None,
        this_session_only: bool = False,
        ingest: Ingest = "turns",
        recall_tools: bool = False,
    ) -> None:
        """Say what is recalled, and what is remembered.

        Args:
            memories: Whose memories; by default those of the agent (and its user) that this is
                installed in, in the agent's store, or in RAM if it has none.
            embedder: What these are embedded with; see `Memories.open`.
            top_k: At most so many memories are recalled; 0 for none.
            budget: How many tokens the block of them may cost, frame included.
            min_score: The least score of a recalled memory. With an embedder the best one has about
                1 whatever is said, so that this leaves out what is far behind the best; by words
                alone it is the share of the question that a memory has.
            graph_id: A label: memories get it, and only those that have it are recalled.
            task_id: A label: the same.
            this_session_only: Whether only what was said in the run's own conversation is recalled.
            ingest: What is remembered of a run that succeeded: `"turns"` (what the user said and the
                last reply, each as one memory), `"user"` (what the user said), None, or an async
                function of the `Turn` that returns texts, such as `facts(concepts)`.
            recall_tools: Whether the model gets the tools `remember`, `recall` and `forget`.

        Raises:
            InvalidValueError: One of them is out of range.
            UsageError: The memories are those of all users, which cannot be added to, and something is
                to be remembered.
        """
        _checked_memories(memories)
        at_least(0, top_k=top_k)
        at_least(1, budget=budget)
        if not isinstance(min_score, int | float) or not isfinite(min_score):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(f"min_score={min_score!r} must be a number.")
        checked_labels(graph_id=graph_id, task_id=task_id)
        checked_ingest(ingest)
        if memories is not None and (ingest is not None or recall_tools):
            refuse_writing(memories.owner)
        self._memories = memories
        self._is_given = memories is not None
        self._embedder = embedder
        self._top_k = top_k
        self._budget = budget
        self._min_score = min_score
        self._graph_id = graph_id
        self._task_id = task_id
        self._this_session_only = this_session_only
        self._ingest: Ingest = ingest
        self._run: ContextVar[RunContext | None] = ContextVar("run", default=None)
        self.tools: Sequence[Tool] = recall_tools_of(self) if recall_tools else ()

    @property
    def memories(self) -> Memories:
        """The memories that it works on.

        Raises:
            InvalidValueError: It was given none, and is in no agent yet.
        """
        if self._memories is None:
            raise InvalidValueError(
                "This LongTermMemory has no memories yet: install it in an agent, or give it some."
            )
        return self._memories

    async def recall(
        self,
        text: str,
        shown: Sequence[Message] = (),
        *,
        session_id: str | None = None,
        now: datetime | None = None,
    ) -> MemoriesRecalled:
        """Return what a run would recall for a text. One search, with at most one embedding of a query.

        Args:
            text: What the user says.
            shown: The messages that the model is shown anyway.
            session_id: The conversation.
            now: The time at which memories are to be true.
        """
        found, failure = await self._search(
            text, session_id, now, limit=self._top_k + min(len(shown) + 1, _SHOWN)
        )
        unseen = _unseen(found, shown, text)
        wanted = [memory for memory in unseen if (memory.score or 0) >= self._min_score]
        block = recalled_block(wanted[: self._top_k], budget=self._budget)
        in_block = {memory.id for memory in block.memories}
        return MemoriesRecalled(
            query=text,
            memories=tuple(memory for memory in wanted if memory.id in in_block),
            block=block.text,
            by_words_only_because=failure,
        )

    def note(self, content: str) -> bool:
        """Have the run whose tool is being called remember a text when it succeeds.

        Returns:
            False when no tool of a run is being called.
        """
        ctx = self._run.get()  # which whoever has called a tool in a run of theirs keeps behind it
        if ctx is None or self._recall(ctx).is_over:
            return False
        self._recall(ctx).noted.append(content)
        return True

    # --- hooks ---

    def on_install(self, store: Store | None, owner: Owner) -> None:
        """Take the memories of the agent when no others were given.

        Raises:
            InvalidValueError: It is in another agent already, whose memories it would mix in.
        """
        if self._is_given:
            return
        if self._memories is not None and self._memories.owner != owner:
            raise InvalidValueError(
                f"This LongTermMemory has the memories of the agent {self._memories.owner.agent_id!r}; "
                "make another one for each agent and user."
            )
        if self._memories is None:
            from tenure.memories import Memories  # which loads the embedders

            self._memories = Memories.open(
                store or InMemoryStore(),
                agent_id=owner.agent_id,
                user_id=owner.user_id,
                embedder=self._embedder,
            )

    async def on_run_start(self, ctx: RunContext) -> None:
        """Search for what the user says, and put the best into the run's requests."""
        ctx.storage[self] = _Recall()
        if not self._top_k or not ctx.input.strip():
            return
        recalled = await self.recall(
            ctx.input, ctx.conversation, session_id=ctx.session_id, now=ctx.clock.now()
        )
        if recalled.block:
            ctx.llm.attach(recalled.block)
        await ctx.send(recalled)

    async def before_tool_call(self, ctx: RunContext, call: ToolCall) -> None:
        """Tell the tools of this feature which run calls them."""
        self._run.set(ctx)

    async def to_remember(
        self, ctx: RunContext, store: Store, messages: Sequence[Message]
    ) -> Sequence[NewMemory]:
        """What the run is to remember, if that can be stored with its messages."""
        recall = self._recall(ctx)
        recall.new = await self._turn(ctx, messages)
        recall.is_committed = store is self.memories.store and ctx.owner == self.memories.owner
        return recall.new if recall.is_committed else ()

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        """Remember the turn, unless that was done with the messages; and have it embedded."""
        recall = self._recall(ctx)
        recall.is_over = True
        if recall.is_committed and ctx.stored is not None:
            added = ctx.stored.memories
            stored = await self.memories._embedded(added)  # pyright: ignore[reportPrivateUsage] # half of an add
        else:
            new = recall.new
            if new is None:  # there is no store, or no conversation
                new = await self._turn(
                    ctx,
                    [*ctx.covered_messages, *ctx.new_messages] if ctx.kept is None else ctx.kept,
                )
            stored = await self.memories.add_many(new) if new else []
        if stored:
            await ctx.send(MemoriesStored(memories=tuple(stored)))

    async def on_run_error(self, ctx: RunContext, error: BaseException) -> None:
        """Take no more notes."""
        self._recall(ctx).is_over = True

    # --- pieces ---

    async def _search(
        self, text: str, session_id: str | None, now: datetime | None, *, limit: int
    ) -> tuple[list[Memory], EmbeddingError | None]:
        wanted = MemoryFilter(
            graph_id=self._graph_id,
            task_id=self._task_id,
            session_id=session_id if self._this_session_only else None,
            as_of=now,
        )
        asked = MemoryQuery(text=text, filter=wanted, limit=limit, explain=True)
        return await self.memories._found(asked)  # pyright: ignore[reportPrivateUsage] # tells failures

    async def _turn(self, ctx: RunContext, messages: Sequence[Message]) -> list[NewMemory]:
        # A history that was rewritten is written again with what others have said, and summaries of it.
        said = (*ctx.covered_messages, *ctx.new_messages)
        own = {message.id for message in said if not is_summary(message)}
        turn = Turn(ctx=ctx, messages=tuple(m for m in messages if m.id in own))
        return [
            *(
                self._new(ctx, each.text, each.metadata, each.messages)
                for each in await texts_of(turn, self._ingest)
            ),
            *(
                self._new(ctx, text, {"type": "note"}, turn.messages)
                for text in self._recall(ctx).noted
            ),
        ]

    def _new(
        self,
        ctx: RunContext,
        content: str,
        metadata: dict[str, str],
        messages: Sequence[Message],
    ) -> NewMemory:
        return NewMemory(
            content=content,
            metadata=dict(metadata),
            graph_id=self._graph_id,
            task_id=self._task_id,
            session_id=ctx.session_id,
            created_at=messages[-1].created_at if messages else None,
            provenance=Provenance(run_id=ctx.run_id, message_ids=tuple(m.id for m in messages)),
        )

    def _recall(self, ctx: RunContext) -> _Recall:
        return cast("_Recall", ctx.storage.setdefault(self, _Recall()))


def _checked_memories(memories: object) -> None:
    """Refuse what are no memories.

    Raises:
        InvalidValueError: They are none, such as a URL, or those of `tenure.sync`.
    """
    if memories is None:
        return
    from tenure.memories import Memories

    if not isinstance(memories, Memories):
        raise InvalidValueError(
            f"memories={memories!r} are none; give a tenure.Memories.open(...)."
        )


def _unseen(found: Sequence[Memory], shown: Sequence[Message], text: str) -> list[Memory]:
    """The memories that say what a model is not shown anyway."""
    ids = {message.id for message in shown}
    said = {text, *(message.text for message in shown)}
    return [
        memory
        for memory in found
        if ids.isdisjoint(memory.provenance.message_ids) and memory.content not in said
    ]
