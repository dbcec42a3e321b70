"""The written contract of long-term memories in a store: what every driver does, word for word.

A `MemoryStore` is a handle on the memories of one owner: `Store.memories(owner)` makes it. `base.py` says
what holds for every operation of a store, and all of it holds here; besides:

- **Owners.** Nothing of another owner is ever read, changed, counted or let influence a score. A handle on
  all users of an agent (`Owner.all_users`) reads only; its writes raise `UsageError`.
- **Freshness.** What any process has added, changed or deleted is seen by the next operation.
- **Exactness.** A search returns exactly the best matches; `retrieval.py` has the formula. The score of a
  memory depends on the query, the filter and the owner's memories that pass the filter, and on
  nothing else: not on `limit`, `offset`, a cache, or the order of writes.
- **Erasing.** When `delete` or `clear` has returned, nothing of the text is left: no row, term, vector or
  earlier version (in SQLite: nor in the file's free pages and its journal).
- **Vectors.** A vector belongs to one text and one embedder, and is stored under the embedder's identity.
  Of a memory whose text has changed meanwhile no vector is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.memory import (
    ALL,
    Memory,
    MemoryChanges,
    MemoryFilter,
    Metric,
    NewMemory,
    Order,
    OrderBy,
    Owner,
)

if TYPE_CHECKING:
    from tenure.memory import Vector
    from tenure.retrieval import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderRecord:
    """What a store knows of an embedder.

    Args:
        identity: Vectors of two identities are never compared.
        name: What it can be made from again, such as `"local"`; empty when it cannot.
        dimensions: Of its vectors.
    """

    identity: str
    name: str
    dimensions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unembedded:
    """A memory that has no vector of some embedder yet."""

    id: str
    content: str
    content_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A vector to store, and the text that it is of."""

    id: str
    content_hash: str
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQuery:
    """What to search for.

    Args:
        text: The words; terms, stop words and a speaker's name are found in it.
        vector: float32 `[d]` of unit norm, for the leg by meaning; None for words only.
        identity: The embedder that the vector is of.
        filter: Only these memories are candidates.
        limit: At most so many.
        offset: Leave out so many of the best.
        order_by: In which order what matches is listed, before `offset` and `limit` count.
        order: For `order_by` of a time; relevance is always the best first.
        weights: Of the signals; those of `retrieval.py` when None.
        metric: Given, only the vector counts: cosine clamped to 0..1, or 1/(1+euclidean distance).
        threshold: With a metric, the least score that matches.
        explain: Whether to tell the signals.
    """

    text: str
    vector: Vector | None = field(default=None, compare=False)
    identity: str | None = None
    filter: MemoryFilter = ALL
    limit: int | None = None
    offset: int = 0
    order_by: OrderBy = "relevance"
    order: Order = "desc"
    weights: Weights | None = None
    metric: Metric | None = None
    threshold: float = 0.0
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search gave.

    Args:
        memories: With their scores, in the order asked for.
        pending: How many of the candidates have no vector of the query's embedder.
    """

    memories: list[Memory]
    pending: int = 0


class MemoryStore(ABC):
    """The memories of one owner; see the module for what holds for every operation."""

    owner: Owner

    @abstractmethod
    async def add(self, new: Sequence[NewMemory], *, deduplicate: bool = True) -> list[Memory]:
        """Add memories, all or none, without vectors.

        Args:
            new: In order.
            deduplicate: Whether to return, in place of one that says the same as a memory that is
                there (or earlier in `new`), that memory as it is. What says the same is told by
                `memory.sameness`.

        Returns:
            One for each of `new`, in its order.

        Raises:
            InvalidValueError: One cannot be stored; nothing of the call was.
        """

    @abstractmethod
    async def get(self, memory_id: str) -> Memory | None:
        """Return a memory with its vector of the answering embedder, or None."""

    @abstractmethod
    async def list(
        self,
        filter_: MemoryFilter = ALL,
        *,
        limit: int | None = None,
        offset: int = 0,
        order_by: OrderBy = "created_at",
        order: Order = "desc",
    ) -> list[Memory]:
        """Return memories by a time; equal ones by id, in the same direction."""

    @abstractmethod
    async def count(self, filter_: MemoryFilter = ALL) -> int:
        """Return how many memories there are."""

    @abstractmethod
    async def update(
        self, memory_id: str, changes: MemoryChanges, *, expected_version: int | None = None
    ) -> Memory | None:
        """Change a memory and keep what it was as an earlier version; None when there is no such one.

        A change to what it is already is none: nothing is written. New content has no vector yet.

        Raises:
            ConflictError: It is not at `expected_version`.
            InvalidValueError: A change cannot be stored.
        """

    @abstractmethod
    async def delete(self, memory_id: str) -> bool:
        """Remove a memory for good; returns whether there was one."""

    @abstractmethod
    async def clear(self, filter_: MemoryFilter = ALL) -> int:
        """Remove memories for good, in one transaction; returns how many."""

    @abstractmethod
    async def history(self, memory_id: str) -> list[Memory]:
        """Return all versions of a memory, the oldest first, without vectors; empty when there is none."""

    @abstractmethod
    async def search(self, query: MemoryQuery) -> Found:
        """Return the memories that match a query, the best first.

        A memory whose score is 0 does not match. Ties go to the newer one, then to the smaller id.
        """

    # --- vectors -----------------------------------------------------------------------------

    @abstractmethod
    async def embedder(self) -> EmbedderRecord | None:
        """Return the embedder whose vectors answer, or None when there has been none."""

    @abstractmethod
    async def use_embedder(self, record: EmbedderRecord) -> bool:
        """Make an embedder the one that answers, if every memory has a vector of it.

        The vectors of all others are removed.

        Returns:
            Whether it answers now; False while a memory has no vector of it.

        Raises:
            InvalidValueError: Its identity was used with other dimensions.
        """

    @abstractmethod
    async def unembedded(
        self, identity: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Unembedded]:
        """Return memories that have no vector of an embedder, by id.

        Args:
            identity: The embedder's.
            limit: At most so many.
            after: Only those with a greater id.
        """

    @abstractmethod
    async def count_unembedded(self, identity: str) -> int:
        """Return how many memories have no vector of an embedder."""

    @abstractmethod
    async def set_vectors(self, record: EmbedderRecord, embedded: Sequence[Embedded]) -> int:
        """Store vectors, in one transaction.

        One of a memory that is gone, or has another text now, is left out. When the owner has no
        answering embedder yet, this one answers from now on.

        Returns:
            How many were stored.

        Raises:
            InvalidValueError: One has other dimensions than the record says, or the identity was
                used with other ones.
        """
