"""Long-term memories: what an agent remembers across conversations and restarts, and finds again.

`Memories` works on the memories of one owner, an agent and perhaps its user, in a store. A search goes by
words and, with an embedder, by meaning; `retrieval.py` has the formula, `embedding.py` the embedders, and
`generations.py` says whose vectors answer. Values are in `memory.py`.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, Unpack

from tenure.embedding import CheckedEmbedder, EmbedderSpec, resolve_embedder
from tenure.errors import InvalidValueError
from tenure.finding import Finding
from tenure.generations import EmbeddingOutcome, Generations
from tenure.memory import (
    DEFAULT_IMPORTANCE,
    FilterFields,
    Memory,
    MemoryChanges,
    MemoryFilter,
    NewMemory,
    Owner,
    Provenance,
)
from tenure.messages import Json
from tenure.stores import Store, open_store

if TYPE_CHECKING:
    pass

Role: TypeAlias = Literal["user", "assistant"]

_log = logging.getLogger(__name__)


class Context(Protocol):
    """A conversation that is to forget what memories forget."""

    async def clear(self) -> None:
        """Remove all of its messages, for good."""
        ...

    async def remove(self, memories: Sequence[Memory]) -> None:
        """Remove the messages that memories came from, for good."""
        ...


class Memories(Finding):
    """The long-term memories of one owner.

    May be used from several tasks, and from several event loops in turn. Leaving the `async with` block, or
    `close`, ends the background work; what has no vector yet gets one when they are opened again.

    Attributes:
        store: Where they are kept.
        context: The conversation that goes with them; an agent's memories have its default one.
    """

    def __init__(self, store: Store, owner: Owner, embedder: CheckedEmbedder | None) -> None:
        """See `open`."""
        self.store = store
        self.context: Context | None = None
        self._memories = store.memories(owner)
        self._vectors = Generations(self._memories, embedder)

    @classmethod
    def open(
        cls,
        store: Store | str,
        *,
        agent_id: str,
        user_id: str | None = None,
        tenant: str | None = None,
        all_users: bool = False,
        embedder: EmbedderSpec = "auto",
    ) -> Self:
        """Return the memories of an owner, for an `async with` block; nothing is read or written yet.

        Args:
            store: A URL such as `"sqlite:///m.db"`, or a `Store`.
            agent_id: Whose memories they are.
            user_id: The agent's user; None is the owner without one, who never sees a user's memories.
            tenant: The tenant, when it is not the one of the store.
            all_users: Read the memories of all the agent's users, and of none; writing raises.
            embedder: `"auto"` (the local one when it is installed), `"local"`, `"provider:model"`, a
                function of texts, an `Embedder`, or None for words only.

        Raises:
            InvalidValueError: A name is empty, or the URL or the embedder is none.
        """
        opened = open_store(store) if isinstance(store, str) else store
        opened = opened if tenant is None else opened.for_tenant(tenant)
        owner = Owner(agent_id=agent_id, user_id=user_id, all_users=all_users)
        return cls(opened, owner, resolve_embedder(embedder))

    @property
    def owner(self) -> Owner:
        """Whose they are."""
        return self._memories.owner

    async def __aenter__(self) -> Self:
        await self._vectors.begin()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the background work of this event loop; the store stays open. A second call does nothing."""
        await self._vectors.close()

    # --- adding ---

    async def add(
        self,
        content: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        graph_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
        position: int | None = None,
        speaker: str | None = None,
        importance: float = DEFAULT_IMPORTANCE,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        created_at: datetime | None = None,
        provenance: Provenance | None = None,
        deduplicate: bool = True,
    ) -> Memory:
        """Remember a text, for good when this returns.

        It is stored before the embedder is asked. If that fails, or takes more than two seconds, the memory
        is returned without an embedding; it is found by its words, and embedded later.

        Args:
            content: The text.
            metadata: JSON values.
            graph_id: A label.
            task_id: A label.
            session_id: A label: the conversation that it belongs to.
            position: Its place in that conversation.
            speaker: Who said it.
            importance: 0 to 1; counts when a search gives it weight.
            valid_from: Since when it is true.
            valid_to: Until when.
            created_at: When it was said; now by default.
            provenance: The run and the messages that it comes from.
            deduplicate: Whether to return the memory that says the same under the same labels already,
                as it is, in place of adding another.

        Raises:
            InvalidValueError: Something of it cannot be stored; the text says what.
        """
        new = NewMemory(
            content=content,
            metadata={} if metadata is None else metadata,
            graph_id=graph_id,
            task_id=task_id,
            session_id=session_id,
            position=position,
            speaker=speaker,
            importance=importance,
            valid_from=valid_from,
            valid_to=valid_to,
            created_at=created_at,
            provenance=provenance or Provenance(),
        )
        [memory] = await self.add_many([new], deduplicate=deduplicate)
        return memory

    async def add_many(
        self, new: Iterable[NewMemory | str], *, deduplicate: bool = True
    ) -> builtins.list[Memory]:
        """Remember several, all or none; returns them in order. See `add`."""
        items = [NewMemory(content=each) if isinstance(each, str) else each for each in new]
        return await self._embedded(await self._memories.add(items, deduplicate=deduplicate))

    async def _embedded(self, added: Sequence[Memory]) -> builtins.list[Memory]:
        """Memories that were just stored, with those vectors that come in time."""
        return await self._vectors.embedded(added)

    async def remember_conversation(
        self,
        content: str,
        role: Role = "user",
        *,
        graph_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """Remember what was said in a conversation, with `{"type": "conversation", "role": role}`.

        Raises:
            InvalidValueError: The role is neither `"user"` nor `"assistant"`.
        """
        if role not in ("user", "assistant"):
            raise InvalidValueError(f"role={role!r} must be 'user' or 'assistant'.")
        return await self.add(
            content,
            {"type": "conversation", "role": role},
            graph_id=graph_id,
            task_id=task_id,
            session_id=session_id,
        )

    # --- changing ---

    async def update(
        self,
        memory_id: str,
        *,
        content: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        importance: float | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        expected_version: int | None = None,
    ) -> Memory | None:
        """Change a memory; what is not given stays. What it was is an earlier version in `history`.

        Args:
            memory_id: The memory.
            content: Its new text, which is embedded as that of `add` is.
            metadata: Replaces all of the old one.
            importance: 0 to 1.
            valid_from: Since when it is true.
            valid_to: Until when, such as now for what is not true any more.
            expected_version: Change it only if it is still at this version.

        Returns:
            The memory as it is now, or None when this owner has none of that id.

        Raises:
            ConflictError: It is at another version than expected.
            InvalidValueError: A value is wrong; the text says which.
        """
        changes = MemoryChanges(
            content=content,
            metadata=metadata,
            importance=importance,
            valid_from=valid_from,
            valid_to=valid_to,
        )
        changed = await self._memories.update(memory_id, changes, expected_version=expected_version)
        if changed is None:
            return None
        [memory] = await self._vectors.embedded([changed])
        return memory

    async def delete(self, memory_id: str, *, sync_with_context: bool = True) -> bool:
        """Remove a memory with its earlier versions, for good; returns whether there was one.

        Args:
            memory_id: The memory.
            sync_with_context: Whether an agent's default conversation loses the messages that the
                memory came from. They go first, so that a call that was interrupted can be repeated.
        """
        if sync_with_context and self.context is not None:
            memory = await self.get(memory_id)
            await self.context.remove([memory] if memory is not None else [])
        return await self._memories.delete(memory_id)

    async def clear(
        self, *, sync_with_context: bool = True, **filters: Unpack[FilterFields]
    ) -> int:
        """Remove all memories of this owner that pass the filters, for good; returns how many.

        Without filters that is all of them.

        Args:
            sync_with_context: Whether an agent's default conversation goes along: whole without
                filters, else the messages that these memories came from. It goes first.
            **filters: Which memories: the fields of `MemoryFilter`.
        """
        if sync_with_context and self.context is not None:
            if any(value is not None for value in filters.values()):
                await self.context.remove(await self.list(limit=None, **filters))
            else:
                await self.context.clear()
        return await self._memories.clear(MemoryFilter(**filters))

    # --- vectors ---

    async def generate_embedding(self, memory_id: str) -> EmbeddingOutcome:
        """Give a memory its vector now, if it has none; failures are told, not raised.

        The messages are `"Memory not found"`, `"Memory already has embedding"`, `"Failed to generate
        embedding"`, `"Failed to store embedding"` and `"Embedding generated successfully"`.
        """
        return await self._vectors.generate(memory_id)

    async def reembed(
        self,
        embedder: EmbedderSpec = "auto",
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Give every memory a vector of an embedder, and use that one from then on.

        Until all have one, the vectors of the earlier embedder answer. A call after an interrupted one
        goes on from there. Memories may be added and changed meanwhile.

        Args:
            embedder: The new one; the one of this handle when it is `"auto"`.
            on_progress: Is called with how many are done, and how many there are to do.

        Returns:
            How many vectors were made.

        Raises:
            EmbeddingError: There is no embedder, or it failed.
        """
        return await self._vectors.reembed(embedder, on_progress)
