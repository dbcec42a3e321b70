"""Ranking memories: BM25, its lift by neighbours, groups and speakers, and the sum of it with similarity.

Pure functions over arrays. A row is a candidate: a memory of one owner that passes the filter of a search. All
statistics are over the candidates, so a score depends on the query, the filter and them, and on nothing
else: no memory of another owner, no limit. `terms.py` says what the terms are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tenure.scripts import folded

Postings: TypeAlias = Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
"""For each term of the query: the rows that have it, each once, and how often each has it."""

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What is known of the candidates beside their terms and vectors; a row of each array is one.

    Args:
        lengths: How many terms each has, repeats counted.
        before: The row of the memory before it in its conversation; -1 where there is none.
        after: The row of the one after it; -1 where there is none.
        groups: Which conversation's day it belongs to, numbered from 0; -1 where none.
        speakers: Who said it, numbered from 0; -1 where nobody.
        importance: From 0 to 1.
        ages_days: From its time to now.
    """

    lengths: NDArray[np.float32]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    groups: NDArray[np.int64]
    speakers: NDArray[np.int64]
    importance: NDArray[np.float32]
    ages_days: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each signal weighs in the score; each is from 0 to 1 before that."""

    words: float = 1.0
    group: float = 0.3
    meaning: float = 0.4
    speaker: float = 0.4
    recency: float = 0.0
    importance: float = 0.0
    half_life_days: float = 30.0


K1 = 0.9
B = 0.4
BEFORE = (0.5, 0.3)
AFTER = (0.3, 0.1)
_LEAST = 1e-3


def scores(
    candidates: Candidates,
    postings: Postings,
    *,
    similarities: NDArray[np.float32] | None,
    speaker: int | None,
    weights: Weights = Weights(),
) -> dict[str, NDArray[np.float32]]:
    """Return every signal of every candidate, weighted; the score is their sum."""
    own = bm25(postings, candidates.lengths)
    smoothed = own + lift(own, candidates)
    most = smoothed.max(initial=0.0) or 1.0
    groups = _of_groups(postings, candidates)
    signals = {
        "words": weights.words * own / most,
        "neighbours": weights.words * (smoothed - own) / most,
        "group": weights.group * groups / (groups.max(initial=0.0) or 1.0),
        "meaning": weights.meaning * _meaning(similarities, len(own)),
        "speaker": weights.speaker * (candidates.speakers == (-2 if speaker is None else speaker)),
    }
    found = sum(signals.values()) > 0
    signals["recency"] = weights.recency * found * 0.5 ** (candidates.ages_days / weights.half_life_days)
    signals["importance"] = weights.importance * found * candidates.importance
    return {name: signal.astype(np.float32) for name, signal in signals.items()}


def bm25(postings: Postings, lengths: NDArray[np.float32]) -> Floats:
    """Return the BM25 of every row."""
    n = len(lengths)
    found = np.zeros(n)
    if not n:
        return found
    norm = K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1.0))
    for rows, counts in postings:
        idf = np.log1p((n - len(rows) + 0.5) / (len(rows) + 0.5))
        found[rows] += idf * counts * (K1 + 1) / (counts + norm[rows])
    return found


def lift(own: Floats, candidates: Candidates) -> Floats:
    """Return what every row gets from its neighbours in the conversation."""
    padded = np.append(own, 0.0)  # row -1
    lifted = np.zeros(len(own))
    for beside, shares in ((candidates.before, BEFORE), (candidates.after, AFTER)):
        steps = np.append(beside, -1)
        reached = beside
        for share in shares:
            lifted += share * padded[reached]
            reached = steps[reached]
    return lifted


def _of_groups(postings: Postings, candidates: Candidates) -> Floats:
    """Return the BM25 of the group of every row, taken as one text."""
    groups = candidates.groups
    count = int(groups.max(initial=-1)) + 1
    if not count:
        return np.zeros(len(groups))
    grouped = groups >= 0
    lengths = np.bincount(groups[grouped], candidates.lengths[grouped], count)
    of_groups: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
    for rows, counts in postings:
        inside = groups[rows]
        sums = np.bincount(inside[inside >= 0], counts[inside >= 0], count)
        having = np.flatnonzero(sums)
        of_groups.append((having, sums[having].astype(np.float32)))
    return np.append(bm25(of_groups, lengths.astype(np.float32)), 0.0)[groups]


def _meaning(similarities: NDArray[np.float32] | None, n: int) -> Floats:
    if similarities is None:
        return np.zeros(n)
    known = similarities[~np.isnan(similarities)].astype(np.float64)
    if not len(known):
        return np.zeros(n)
    floor = known.min() - _LEAST
    return np.nan_to_num((similarities - floor) / (known.max() - floor), nan=0.0)


def similarities(
    vectors: NDArray[np.float32], query: NDArray[np.float32], metric: Literal["cosine", "euclidean"]
) -> NDArray[np.float32]:
    """Return how alike each row of unit vectors `[n, d]` and a query `[d]` are."""
    cosines = np.clip(np.vecdot(vectors, query / (float(np.linalg.norm(query)) or 1.0)), -1, 1)
    if metric == "cosine":
        return cosines.astype(np.float32)
    return (1 / (1 + np.sqrt(2 - 2 * cosines))).astype(np.float32)


def top(
    scores: NDArray[np.float32], created: NDArray[np.int64], ids: Sequence[str], *, count: int
) -> NDArray[np.int64]:
    """Return the best rows: by score, ties to the newer, then the smaller id."""
    rows = np.arange(len(scores))
    if 0 < count < len(rows):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        rows = np.flatnonzero(scores >= least)
    ranked = heapq.nsmallest(
        count, rows.tolist(), key=lambda row: (-scores[row], -created[row], ids[row])
    )
    return np.array(ranked, dtype=np.int64)


def named_speaker(query: str, speakers: Sequence[str]) -> int | None:
    """Return the number of the one speaker whom the query names."""
    words = set(folded(query).replace("'s", "").split())
    named = [n for n, name in enumerate(speakers) if folded(name).split()[0] in words]
    return named[0] if len(named) == 1 else None
