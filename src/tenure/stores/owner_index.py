"""What a search works on: an owner's memories as arrays in RAM, kept current by revision.

Before each search an `OwnerIndex` is told what has changed since the last one (`Source`), whoever changed
it. A row is never changed: a changed memory gets a new one, and its old one is dead. Where a memory's row
is has no influence on any score; `retrieval.py` has the formula.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tenure.errors import InvalidValueError
from tenure.retrieval import (
    Candidates,
    Centre,
    Weights,
    centre_of,
    contenders,
    named_speaker,
    scores,
    similarities,
    top,
)
from tenure.stores.index_arrays import Codes, IdsOf, Vectors, of_rows, renumbered
from tenure.stores.index_source import micros
from tenure.terms import query_terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.memory import MemoryFilter
    from tenure.messages import Json
    from tenure.stores.index_source import IndexedMemory, Source
    from tenure.stores.memory_base import MemoryQuery

_US_PER_DAY = 86_400_000_000
_EVER = 2**63 - 1
_CACHED_POSTINGS = 2_000_000  # rows of terms kept from earlier queries; at 12 bytes each
_DEAD_AT_LEAST = 1_000  # rows, before an index with more dead than living ones is made anew


@dataclass(frozen=True, slots=True)
class Hit:
    """One memory that matches."""

    number: int
    score: float
    signals: Mapping[str, float]


class _Arrays:
    """The columns of an index as NumPy arrays, made once after each change, when a search needs them."""

    def __init__(self, index: OwnerIndex) -> None:
        self._index = index
        self._columns: dict[str, NDArray[Any]] = {}
        self.centres: dict[str, Centre] = {}  # of all living rows, by embedder

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            self._columns[name] = np.array(getattr(self._index, name))
        return self._columns[name]

    @cached_property
    def is_alive(self) -> NDArray[np.bool_]:
        return self["alive"].astype(np.bool_)

    @cached_property
    def living(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.is_alive)

    @cached_property
    def in_conversations(self) -> NDArray[np.int64]:
        """The living rows that are in a conversation: one after the other, and inside them by place."""
        living = np.flatnonzero(self.is_alive & (self["sessions"] >= 0))
        keys = ("numbers", "created", "positions", "sessions")  # the last one counts first
        return living[np.lexsort([self[key][living] for key in keys])]


class OwnerIndex:
    """The memories of one owner as arrays. Not safe in threads by itself: hold `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.revision = 0
        self.ids: list[str] = []
        self.metadata: list[Mapping[str, Json]] = []
        self.alive, self.asks = array("b"), array("b")
        self.lengths, self.importance = array("f"), array("f")
        self.numbers, self.positions, self.created, self.updated = (array("q") for _ in range(4))
        self.valid_from, self.valid_to = array("q"), array("q")
        self.graphs, self.tasks, self.sessions, self.speakers, self.groups = (
            array("q") for _ in range(5)
        )
        self._codes = {name: Codes() for name in ("graphs", "tasks", "sessions", "speakers")}
        self._groups: dict[tuple[int, int], int] = {}
        self._rows: dict[int, int] = {}  # number -> the row that is alive
        self._vectors: dict[str, Vectors] = {}
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        self._arrays: _Arrays | None = None

    # --- keeping current ---

    def refresh(self, source: Source, identity: str | None) -> None:
        """Take in what has changed, and the vectors of an embedder if they are not here yet."""
        latest = source.latest()
        if latest < self.revision:  # another thread has seen more than this one
            source.renew()
            latest = source.latest()
        is_mostly_dead = len(self.ids) > 2 * len(self._rows) + _DEAD_AT_LEAST
        if latest < self.revision or self.revision < source.told_since() or is_mostly_dead:
            self._begin_anew()
        if latest > self.revision:
            self._arrays = None
            for number in source.removed(self.revision):
                self._kill(number)
                self._postings.clear()
            for memory in source.changed(self.revision):
                self._kill(memory.number)
                self._append(memory)
            for known in self._vectors:
                self._load_vectors(source, known, after=self.revision)
            self.revision = latest
        if identity is not None and identity not in self._vectors:
            self._vectors[identity] = Vectors()
            self._load_vectors(source, identity, after=0)

    def _append(self, memory: IndexedMemory) -> None:
        row = len(self.ids)
        session = self._codes["sessions"][memory.session_id]
        day = memory.created // _US_PER_DAY
        self.ids.append(memory.id)
        self.metadata.append(memory.metadata)
        self.alive.append(True)
        self.asks.append(memory.asks)
        self.lengths.append(memory.length)
        self.importance.append(memory.importance)
        self.numbers.append(memory.number)
        self.positions.append(_EVER if memory.position is None else memory.position)
        self.created.append(memory.created)
        self.updated.append(memory.updated)
        self.valid_from.append(-_EVER if memory.valid_from is None else memory.valid_from)
        self.valid_to.append(_EVER if memory.valid_to is None else memory.valid_to)
        self.graphs.append(self._codes["graphs"][memory.graph_id])
        self.tasks.append(self._codes["tasks"][memory.task_id])
        self.sessions.append(session)
        self.speakers.append(self._codes["speakers"][memory.speaker])
        no_group = session < 0
        self.groups.append(
            -1 if no_group else self._groups.setdefault((session, day), len(self._groups))
        )
        self._rows[memory.number] = row
        if self._postings:
            self._extend_postings(row, json.loads(memory.terms))

    def _extend_postings(self, row: int, terms: Mapping[str, int]) -> None:
        for term, count in terms.items():
            if (cached := self._postings.get(term)) is not None:
                cached[0].append(row)
                cached[1].append(count)

    def _kill(self, number: int) -> None:
        row = self._rows.pop(number, None)
        if row is not None:
            self.alive[row] = False
            self.metadata[row] = {}
            for vectors in self._vectors.values():
                vectors.drop(row)

    def _load_vectors(self, source: Source, identity: str, *, after: int) -> None:
        vectors = self._vectors[identity]
        rows: list[int] = []
        blobs: list[bytes] = []
        for number, blob in source.vectors(identity, after):
            rows.append(self._rows[number])
            blobs.append(blob)
            if len(blobs) == 4_096:  # so that the copies are small beside the matrix
                vectors.put(rows, blobs, size=len(self.ids))
                rows, blobs = [], []
        if blobs:
            vectors.put(rows, blobs, size=len(self.ids))

    @property
    def nbytes(self) -> int:
        """About how much RAM this takes, in bytes."""
        cached = sum(12 * len(rows) for rows, _ in self._postings.values())
        return 400 * len(self.ids) + cached + sum(v.nbytes for v in self._vectors.values())

    # --- searching ---

    def search(self, query: MemoryQuery, source: Source, *, now: int) -> tuple[list[Hit], int]:
        """Return the hits of a query, and how many candidates have no vector of its embedder.

        `refresh` with the same source first. `now` is in microseconds since 1970.

        Raises:
            InvalidValueError: The query's vector is not of the embedder's dimensions.
        """
        arrays = self._arrays = self._arrays or _Arrays(self)
        rows = self._candidates(arrays, query.filter)
        cosines = self._similarities(arrays, query, rows)
        pending = 0 if cosines is None else int(np.count_nonzero(np.isnan(cosines)))
        if query.metric is None:
            signals = self._signals(arrays, query, source, rows, cosines, now=now)
            total = sum(signals.values(), np.zeros(len(rows), np.float32))
            matches = total > 0
        else:
            total = np.full(len(rows), np.nan, np.float32) if cosines is None else cosines
            signals = {query.metric: total}
            matches = total >= query.threshold
        hits = [
            Hit(
                number=self.numbers[rows[i]],
                score=float(total[i]),
                signals={name: float(values[i]) for name, values in signals.items()},
            )
            for i in self._in_order(query, arrays, rows, total, matches)
        ]
        return hits, pending

    def _in_order(
        self,
        query: MemoryQuery,
        arrays: _Arrays,
        rows: NDArray[np.int64],
        total: NDArray[np.float32],
        matches: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Which of the candidates are asked for, in order, among those that match."""
        end = len(rows) if query.limit is None else query.offset + query.limit
        if query.order_by == "relevance":
            found = contenders(total, matches, count=end)
            of_found = rows[found]
            ids = IdsOf(self.ids, of_found)
            best = top(total[found], arrays["created"][of_found], ids, count=end)
        else:
            found = np.flatnonzero(matches)
            of_found = rows[found]
            ids = IdsOf(self.ids, of_found)
            times = arrays[query.order_by.removesuffix("_at")][of_found]
            by_time = sorted(range(len(found)), key=lambda i: (times[i], ids[i]))
            best = np.array(by_time[:: 1 if query.order == "asc" else -1], np.int64)
        return found[best[query.offset : end]]

    def _candidates(self, arrays: _Arrays, wanted: MemoryFilter) -> NDArray[np.int64]:
        """The rows that pass a filter."""
        mask = self._mask(arrays, wanted)
        return arrays.living if mask is arrays.is_alive else np.flatnonzero(mask)

    def _mask(self, arrays: _Arrays, wanted: MemoryFilter) -> NDArray[np.bool_]:
        mask = arrays.is_alive
        for name, value in (
            ("graphs", wanted.graph_id),
            ("tasks", wanted.task_id),
            ("sessions", wanted.session_id),
            ("speakers", wanted.speaker),
        ):
            if value is not None:
                mask = mask & (arrays[name] == self._codes[name].get(value, -2))
        if wanted.start_date is not None:
            mask = mask & (arrays["created"] >= micros(wanted.start_date))
        if wanted.end_date is not None:
            mask = mask & (arrays["created"] <= micros(wanted.end_date))
        if wanted.as_of is not None:
            then = micros(wanted.as_of)
            mask = mask & (arrays["valid_from"] <= then) & (then < arrays["valid_to"])
        if (holds := wanted.condition()) is not None:
            asked = np.flatnonzero(mask)
            mask = np.zeros(len(mask), np.bool_)
            mask[[row for row in asked if holds(self.metadata[row])]] = True
        return mask

    def _similarities(
        self, arrays: _Arrays, query: MemoryQuery, rows: NDArray[np.int64]
    ) -> NDArray[np.float32] | None:
        """The similarity of each row to the query; NaN where it has no vector, None without a query's."""
        if query.vector is None or query.identity is None:
            return None
        matrix = self._vectors[query.identity].filled(len(self.ids))
        if not matrix.shape[1]:
            return np.full(len(rows), np.nan, np.float32)
        if matrix.shape[1] != len(query.vector):
            raise InvalidValueError(
                f"The query's vector has {len(query.vector)} dimensions, and those of "
                f"{query.identity!r} have {matrix.shape[1]}."
            )
        if query.metric is not None:
            if 2 * len(rows) < len(matrix):
                plain = similarities(matrix[rows], query.vector, query.metric)
            else:  # to look at all costs less than to copy most
                plain = of_rows(similarities(matrix, query.vector, query.metric), rows)
            return np.clip(plain, 0, 1)
        if len(rows) < len(self._rows):
            some = matrix[rows]
            return similarities(some, query.vector, centre=centre_of(some))
        if query.identity not in arrays.centres:
            arrays.centres[query.identity] = centre_of(matrix)
        centre = arrays.centres[query.identity]
        return of_rows(similarities(matrix, query.vector, centre=centre), rows)

    def _signals(
        self,
        arrays: _Arrays,
        query: MemoryQuery,
        source: Source,
        rows: NDArray[np.int64],
        cosines: NDArray[np.float32] | None,
        *,
        now: int,
    ) -> Mapping[str, NDArray[np.float32]]:
        place = np.full(len(self.ids), -1, np.int64)  # of a row among the candidates
        place[rows] = np.arange(len(rows))
        before, after = self._neighbours(arrays, place, len(rows))
        speakers = arrays["speakers"][rows]
        candidates = Candidates(
            lengths=arrays["lengths"][rows],
            before=before,
            after=after,
            groups=renumbered(arrays["groups"][rows]),
            speakers=speakers,
            importance=arrays["importance"][rows],
            ages_days=((now - arrays["created"][rows]) / _US_PER_DAY).astype(np.float32),
            asks=arrays["asks"][rows].astype(np.bool_),
        )
        return scores(
            candidates,
            [self._candidates_with(term, source, place) for term in query_terms(query.text)],
            similarities=cosines,
            speaker=self._named_speaker(query.text, speakers),
            weights=query.weights or Weights(),
        )

    def _neighbours(
        self, arrays: _Arrays, place: NDArray[np.int64], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The candidate before and the one after each, in its conversation; -1 where there is none."""
        ordered = arrays.in_conversations
        ordered = ordered[place[ordered] >= 0]
        sessions = arrays["sessions"][ordered]
        are_together = sessions[1:] == sessions[:-1]
        first, second = place[ordered[:-1][are_together]], place[ordered[1:][are_together]]
        before, after = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        before[second], after[first] = first, second
        return before, after

    def _named_speaker(self, text: str, speakers: NDArray[np.int64]) -> int | None:
        codes = [int(code) for code in np.unique(speakers) if code >= 0]
        names = list(self._codes["speakers"])
        found = named_speaker(text, [str(names[code + 1]) for code in codes])
        return None if found is None else codes[found]

    def _candidates_with(
        self, term: str, source: Source, place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The candidates that have a term, and how often."""
        cached = self._postings.get(term)
        if cached is None:
            if sum(len(rows) for rows, _ in self._postings.values()) > _CACHED_POSTINGS:
                self._postings.clear()
            found = [(self._rows[number], count) for number, count in source.postings(term)]
            cached = (
                array("q", [row for row, _ in found]),
                array("f", [count for _, count in found]),
            )
            self._postings[term] = cached
        places = place[np.array(cached[0], np.int64)]
        return places[places >= 0], np.array(cached[1], np.float32)[places >= 0]
