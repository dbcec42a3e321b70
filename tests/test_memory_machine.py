"""Searches are exact, whatever was written before, by whom, and through which store object.

A Hypothesis state machine writes the memories of several owners through the store in RAM and, by turns,
through two SQLite stores on one file. Every search is compared with the formula, worked out from what
`list` returns.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tenure import Memory, MemoryFilter, NewMemory, Owner
from tenure.memory import MemoryChanges, passes
from tenure.retrieval import Candidates, Weights, centre_of, named_speaker, scores, similarities
from tenure.stores.inmemory import InMemoryStore
from tenure.stores.memory_base import Embedded, EmbedderRecord, MemoryQuery, MemoryStore
from tenure.stores.sqlite import SQLiteStore
from tenure.terms import date_terms, has_question, query_terms, terms
from tenure.testing import HashEmbedder, ManualClock

OWNERS = [Owner(agent_id="a"), Owner(agent_id="a", user_id="u"), Owner(agent_id="b", user_id="u")]
HASHED = EmbedderRecord(identity="hash", name="", dimensions=64)
NOW = datetime(2026, 6, 1, tzinfo=UTC)

owners = st.sampled_from([0, 0, 0, 1, 2])
texts = st.lists(
    st.sampled_from(
        [
            "apple",
            "pie",
            "red",
            "car",
            "tea",
            "Ada",
            "Bob",
            "may",
            "what?",
            "where?",
            "the",
            "日本",
            "회의는",
        ]
    ),
    min_size=1,
    max_size=5,
).map(" ".join)
labels = st.sampled_from([None, "s", "t"])
places = st.integers(0, 20)  # a memory of the owner, by its place in the list
news = st.builds(
    NewMemory,
    content=texts,
    session_id=labels,
    task_id=st.sampled_from([None, "x"]),
    position=st.none() | st.integers(0, 5),
    speaker=st.sampled_from([None, "Ada", "Bob"]),
    created_at=st.integers(0, 5).map(lambda day: NOW - timedelta(days=day)),
    metadata=st.sampled_from([{}, {"n": 1}, {"n": 2}, {"n": 3}]),
)
filters = st.just(MemoryFilter()) | st.builds(
    MemoryFilter,
    session_id=labels,
    task_id=st.sampled_from([None, None, "x"]),
    speaker=st.sampled_from([None, None, "Ada"]),
    start_date=st.none() | st.just(NOW - timedelta(days=3)),
    where=st.sampled_from([None, None, {"n": {"$gt": 1}}]),
)


def formula(memories: list[Memory], query: MemoryQuery) -> dict[str, float]:
    """The score of each memory that matches, worked out anew from all that pass the filter."""
    kept = sorted((m for m in memories if passes(m, query.filter)), key=lambda m: m.id)
    n = len(kept)
    counts = [Counter([*terms(m.content), *date_terms(m.created_at)]) for m in kept]
    before, after = np.full(n, -1), np.full(n, -1)
    days = [(m.session_id, m.created_at.date()) for m in kept]
    groups = {day: number for number, day in enumerate(dict.fromkeys(d for d in days if d[0]))}
    for session in {m.session_id for m in kept if m.session_id is not None}:
        inside = [row for row in range(n) if kept[row].session_id == session]
        inside.sort(key=lambda row: (_place(kept[row]), kept[row].created_at, kept[row].id))
        for first, second in pairwise(inside):
            after[first], before[second] = second, first
    names = sorted({m.speaker for m in kept if m.speaker is not None})
    alike = None
    if query.vector is not None:
        rows = [np.full(64, np.nan) if m.embedding is None else m.embedding for m in kept]
        vectors = np.array(rows, np.float32).reshape(n, 64)
        alike = similarities(vectors, query.vector, centre=centre_of(vectors))
    candidates = Candidates(
        lengths=np.array([count.total() for count in counts], np.float32),
        before=before,
        after=after,
        groups=np.array([groups.get(day, -1) for day in days], np.int64),
        speakers=np.array([-1 if m.speaker is None else names.index(m.speaker) for m in kept]),
        importance=np.array([m.importance for m in kept], np.float32),
        ages_days=np.array([(NOW - m.created_at) / timedelta(days=1) for m in kept], np.float32),
        asks=np.array([has_question(m.content) for m in kept], np.bool_),
    )
    wanted = query_terms(query.text)
    having = [[row for row in range(n) if term in counts[row]] for term in wanted]
    postings = [
        (np.array(rows, np.int64), np.array([counts[row][term] for row in rows], np.float32))
        for term, rows in zip(wanted, having, strict=True)
    ]
    signals = scores(
        candidates,
        postings,
        similarities=alike,
        speaker=named_speaker(query.text, names),
        weights=query.weights or Weights(),
    )
    total = np.sum(list(signals.values()), axis=0) if n else np.zeros(0)
    return {m.id: float(score) for m, score in zip(kept, total, strict=True) if score > 0}


def _place(memory: Memory) -> float:
    return float("inf") if memory.position is None else memory.position


class MemoryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "m.db"
        self.loop = asyncio.Runner()
        clocks = [ManualClock(NOW), ManualClock(NOW)]
        self.stores = [
            InMemoryStore(clock=clocks[0]),
            SQLiteStore(path, clock=clocks[1]),
            SQLiteStore(path, clock=clocks[1]),
        ]
        self.turn = 0

    def teardown(self) -> None:
        for store in self.stores:
            self.loop.run(store.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def drivers(self, owner: int) -> tuple[MemoryStore, MemoryStore]:
        """The memories in RAM, and those in the file, through its two stores by turns."""
        self.turn += 1
        return (
            self.stores[0].memories(OWNERS[owner]),
            self.stores[1 + self.turn % 2].memories(OWNERS[owner]),
        )

    def look(self, owner: int) -> None:
        """Search everything, so that an index that has missed the last change is caught."""
        for _ in self.stores[1:]:
            self.search(owner, "apple tea", MemoryFilter(), by_meaning=True, limit=None, offset=0)

    def picked(self, store: MemoryStore, place: int) -> Memory | None:
        every = self.loop.run(store.list(order="asc"))
        return every[place % len(every)] if every else None

    @rule(owner=owners, news=st.lists(news, min_size=3, max_size=9), again=st.booleans())
    def add(self, owner: int, news: list[NewMemory], again: bool) -> None:
        for store in self.drivers(owner):
            self.loop.run(store.add(news, deduplicate=again))

    @rule(owner=owners, place=places, content=st.none() | texts, n=st.none() | st.integers(0, 3))
    def update(self, owner: int, place: int, content: str | None, n: int | None) -> None:
        changes = MemoryChanges(content=content, metadata=None if n is None else {"n": n})
        for store in self.drivers(owner):
            memory = self.picked(store, place)
            if memory is not None:
                self.loop.run(store.update(memory.id, changes))
        self.look(owner)

    @rule(owner=owners, place=places)
    def delete(self, owner: int, place: int) -> None:
        for store in self.drivers(owner):
            memory = self.picked(store, place)
            if memory is not None:
                assert self.loop.run(store.delete(memory.id))
        self.look(owner)

    @rule(owner=owners, session=st.sampled_from("st"))
    def clear(self, owner: int, session: str) -> None:
        wanted = MemoryFilter(session_id=session, where={"n": 1})
        first, second = [self.loop.run(store.clear(wanted)) for store in self.drivers(owner)]
        assert first == second

    @rule(owner=owners, count=st.integers(1, 9))
    def embed(self, owner: int, count: int) -> None:
        for store in self.drivers(owner):
            pending = self.loop.run(store.unembedded("hash", limit=count))
            vectors = self.loop.run(
                HashEmbedder().embed([p.content for p in pending], kind="document")
            )
            embedded = [
                Embedded(id=p.id, content_hash=p.content_hash, vector=v)
                for p, v in zip(pending, vectors, strict=True)
            ]
            assert self.loop.run(store.set_vectors(HASHED, embedded)) == len(pending)

    @rule(
        owner=owners,
        text=texts,
        wanted=filters,
        by_meaning=st.booleans(),
        limit=st.none() | st.integers(0, 5),
        offset=st.integers(0, 3),
    )
    def search_for(self, **asked: Any) -> None:
        self.search(**asked)

    def search(
        self,
        owner: int,
        text: str,
        wanted: MemoryFilter,
        *,
        by_meaning: bool,
        limit: int | None,
        offset: int,
    ) -> None:
        [vector] = self.loop.run(HashEmbedder().embed([text], kind="query"))
        query = MemoryQuery(
            text=text,
            vector=vector if by_meaning else None,
            identity="hash",
            filter=wanted,
            limit=limit,
            offset=offset,
            weights=Weights(recency=0.1, importance=0.1),
        )
        answers: list[list[tuple[str, float]]] = []
        for store in self.drivers(owner):
            every = self.loop.run(store.list())
            expected = formula(every, query)
            found = self.loop.run(store.search(query)).memories
            whole = sorted(expected.values(), reverse=True)
            end = None if limit is None else offset + limit
            ours = [memory.score or 0 for memory in found]
            assert np.allclose(ours, whole[offset:end], atol=1e-4), (ours, whole)
            for memory in found:
                assert abs((memory.score or 0) - expected[memory.id]) < 1e-4
            answers.append([(memory.content, round(memory.score or 0, 3)) for memory in found])
        assert Counter(answers[0]) == Counter(answers[1]) or limit is not None or offset


IS_SOAK = "TENURE_SOAK" in os.environ  # set by `make soak`

MemoryMachine.TestCase.settings = settings(
    derandomize=not IS_SOAK,
    max_examples=1_000 if IS_SOAK else 25,
    stateful_step_count=60 if IS_SOAK else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[p for p in Phase if IS_SOAK or p not in (Phase.shrink, Phase.explain)],
)
TestMemoryMachine = MemoryMachine.TestCase
