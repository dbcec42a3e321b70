"""Ranking memories: by their words, those of their neighbours and their day, who said them, and likeness.

Pure functions over arrays. A row is a candidate: a memory of one owner that passes the filter of a search.
All statistics are over the candidates, so that a score depends on the query, the filter and them, and on
nothing else: not on another owner's memories, not on how many results are wanted. What the terms are,
`terms.py` says; how alike vectors are, `likeness.py`; whom a query names, `speakers.py`.

The constants are round numbers, chosen on the development half of LoCoMo (`benchmarks/locomo.py`: five long
chats, 759 questions). There recall@10 and nDCG@10 are .806 and .659 by words alone, .830 and .680 with the
local embedder. In brackets below is what these four fall to without the one thing. Values next to the ones
here differ by less than .01 from them, which is less than chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tenure.likeness import Centre, centre_of, similarities
from tenure.speakers import named_speaker

__all__ = [
    "Candidates",
    "Centre",
    "Postings",
    "Weights",
    "centre_of",
    "contenders",
    "named_speaker",
    "scores",
    "similarities",
    "top",
]

Postings: TypeAlias = Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
"""For each term of the query: the rows that have it, each once, and how often each has it."""

_Floats: TypeAlias = NDArray[np.float64]

K1 = 0.9
B = 0.4
"""BM25: how soon repeats of a term stop counting, and how much long texts are held back.

Usual values for short texts, where a repeat says little; k1 of .6 to 1.5 and b of .2 to .75 do as well.
"""

NEAR = (0.5, 0.3)
"""What a term counts that is not in a memory but in its neighbour, before or after, and in the one beyond.

In conversation the words of a topic are spread over several turns. A term counts as in the best of the five
places, once: adding them up would reward talk that repeats itself [.741 .601 .785 .629].
"""

ANSWER = 0.9
"""What it counts where the memory before has a question: an answer leaves out the words of its question.

Source: adjacency pairs, Schegloff and Sacks, "Opening up Closings" (1973) [.798 .640 .824 .659].
"""

NEAR_MEANING = 0.3
"""What the likeness of the memories before and after adds to that of a memory [- - .821 .674]."""

_CELLS = 2**20  # of the largest array that is made at once, some MB


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
        ages_days: From its time to now; negative in the future, which counts as now.
        asks: Whether it has a question (`terms.has_question`); `None` where that is not known of any.
    """

    lengths: NDArray[np.float32]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    groups: NDArray[np.int64]
    speakers: NDArray[np.int64]
    importance: NDArray[np.float32]
    ages_days: NDArray[np.float32]
    asks: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each signal weighs in the score.

    Args:
        words: BM25 of a memory, and what its neighbours lend it; 1 for a memory that says all that is asked
            for. Where none has more than one word of five, that one does not count as if it were all.
        group: The same of the conversation's day that it belongs to, taken as one text: words of one topic
            may be far apart [.795 .650 .818 .667].
        meaning: How alike its vector and the query's are, where some memory says all that is asked for.
        meaning_alone: The same where none says anything of it; in between the weight is in between. Of 30
            questions in other words than their answer, 17 had that among the first 3 of 430 memories with
            .4, 22 with 1, and 24 by vectors alone. On LoCoMo it makes no difference.
        speaker: Said by the one speaker whom the query names: who is asked about speaks of it most. This
            finds a memory by itself [.777 .606 .814 .633].
        recency: Halves with every `half_life_days`; only for what another signal found.
        importance: As the memory has it; only for what another signal found.
        half_life_days: After how many days recency is half.
    """

    words: float = 1.0
    group: float = 0.3
    meaning: float = 0.4
    meaning_alone: float = 1.0
    speaker: float = 0.4
    recency: float = 0.0
    importance: float = 0.0
    half_life_days: float = 30.0


def scores(
    candidates: Candidates,
    postings: Postings,
    *,
    similarities: NDArray[np.float32] | None,
    speaker: int | None,
    weights: Weights = Weights(),
) -> dict[str, NDArray[np.float32]]:
    """Return every signal of every candidate, already weighted; the score is their sum.

    Args:
        candidates: Of `n` rows.
        postings: Of each term of the query.
        similarities: How alike the vectors of memory and query are, `[n]`; NaN where a memory has none yet,
            and `None` where the query has none. Best from `likeness.similarities` with a `Centre`.
        speaker: The number of the one whom the query names.
        weights: What each signal weighs.

    Returns:
        float32 `[n]` by name: `words`, `neighbours` (what they lend by words and meaning), `group`,
        `meaning`, `speaker`, `recency`, `importance`. None is negative. All are 0 for a memory that nothing
        speaks for, and only for that.
    """
    words, borrowed = _words(candidates, postings)
    meaning, near = _meaning(candidates, similarities)
    covered = float((words + borrowed).max(initial=0.0))
    of_meaning = covered * weights.meaning + (1 - covered) * weights.meaning_alone
    signals = {
        "words": weights.words * words,
        "neighbours": weights.words * borrowed + of_meaning * near,
        "group": weights.group * _groups(candidates, postings),
        "meaning": of_meaning * meaning,
        "speaker": weights.speaker * _said_by(candidates, speaker),
    }
    found = sum(signals.values()) > 0
    for name, lifted in _lifts(candidates, weights).items():
        signals[name] = lifted * found
    return {name: signal.astype(np.float32) for name, signal in signals.items()}


def _words(candidates: Candidates, postings: Postings) -> tuple[_Floats, _Floats]:
    """Return the BM25 of each memory, and what its neighbours lend it, as shares of `_wanted`."""
    n = len(candidates.lengths)
    own, best = np.zeros(n), np.zeros(n)
    norms = _norms(candidates.lengths)
    ways = _ways(candidates)
    for some in _blocks(postings, n):
        gains = _gains(some, norms)
        own += gains[:, :n].sum(axis=0)
        most = gains[:, :n].copy()
        for reached, shares in ways:
            np.maximum(most, shares * np.take(gains, reached, axis=1), out=most)
        best += most.sum(axis=0)
    wanted = max(_wanted(postings, n), best.max(initial=0.0)) or 1.0
    return own / wanted, np.maximum(best - own, 0.0) / wanted


def _ways(candidates: Candidates) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Return the rows that lie so and so far off from each memory, and what a term counts in them."""
    before, after = candidates.before, candidates.after
    if max(before.max(initial=-1), after.max(initial=-1)) < 0:
        return []
    first = np.full(len(before), NEAR[0], np.float32)
    asked = first
    if candidates.asks is not None:
        asked = np.where(np.append(candidates.asks, False)[before], np.float32(ANSWER), first)
    second = np.full(len(before), NEAR[1], np.float32)
    return [
        (before, asked),
        (np.append(before, -1)[before], second),
        (after, first),
        (np.append(after, -1)[after], second),
    ]


def _groups(candidates: Candidates, postings: Postings) -> _Floats:
    """Return the BM25 of the group of each memory, all its memories taken as one text, as `_words` does."""
    groups = candidates.groups
    count = int(groups.max(initial=-1)) + 1
    if not count:
        return np.zeros(len(groups))
    grouped = groups >= 0
    norms = _norms(np.bincount(groups[grouped], candidates.lengths[grouped], count))
    best = np.zeros(count + 1)  # the last is that of no group, -1
    wanted = 0.0
    for some in _blocks(postings, count):
        of_groups: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        for rows, counts in some:
            within = groups[rows]
            sums = np.bincount(within[within >= 0], counts[within >= 0], count)
            having = np.flatnonzero(sums)
            of_groups.append((having, sums[having].astype(np.float32)))
        best += _gains(of_groups, norms).sum(axis=0)
        wanted += _wanted(of_groups, count)
    return best[groups] / (max(wanted, best.max()) or 1.0)


def _blocks(postings: Postings, width: int) -> Iterator[Postings]:
    """Yield some postings after others, so many that arrays of this width for each stay small."""
    step = max(_CELLS // (width + 1), 1)
    for start in range(0, len(postings), step):
        yield postings[start : start + step]


def _gains(postings: Postings, norms: _Floats) -> NDArray[np.float32]:
    """Return what BM25 gives to each text for each term, `[terms, texts + 1]`; the last text has none."""
    gains = np.zeros((len(postings), len(norms) + 1), np.float32)
    for of_term, (rows, counts) in zip(gains, postings, strict=True):
        idf = _idf(len(rows), len(norms))
        of_term[rows] = idf * (K1 + 1) * counts / (counts + norms[rows])
    return gains


def _wanted(postings: Postings, n: int) -> float:
    """Return the BM25 of a text of average length that has each term once, those that none has included."""
    return sum(_idf(len(rows), n) for rows, _ in postings)


def _idf(having: int, n: int) -> float:
    """Return how much it says that a text has a term which so many of n have."""
    return math.log1p((n - having + 0.5) / (having + 0.5))


def _norms(lengths: NDArray[np.float32] | _Floats | NDArray[np.intp]) -> _Floats:
    """Return what the counts in texts of these lengths are held back by."""
    exact = lengths.astype(np.float64)
    return K1 * (1 - B + B * exact / max(exact.mean() if len(exact) else 0.0, 1.0))


def _meaning(
    candidates: Candidates, similarities: NDArray[np.float32] | None
) -> tuple[_Floats, _Floats]:
    """Return how alike each memory and the query are, and what neighbours lend; the largest sum is 1.

    Likeness below 0 is none. Where all are above, as with few memories, it is counted from just below the
    least: whatever has a vector is then found.
    """
    n = len(candidates.lengths)
    known = np.zeros(0, np.bool_) if similarities is None else ~np.isnan(similarities)
    if similarities is None or not known.any():
        return np.zeros(n), np.zeros(n)
    floor = max(float(similarities[known].min()) - 1e-3, 0.0)
    own = np.where(known, np.maximum(similarities.astype(np.float64) - floor, 0.0), 0.0)
    padded = np.append(own, 0.0)  # for -1
    lent = NEAR_MEANING * (padded[candidates.before] + padded[candidates.after])
    most = (own + lent).max() or 1.0
    return own / most, lent / most


def _lifts(candidates: Candidates, weights: Weights) -> dict[str, _Floats]:
    """Return what lifts a memory that something else found."""
    recency = importance = np.zeros(len(candidates.lengths))
    if weights.recency:
        ages = np.maximum(candidates.ages_days.astype(np.float64), 0.0)
        recency = weights.recency * 0.5 ** (ages / weights.half_life_days)
    if weights.importance:
        importance = weights.importance * candidates.importance.astype(np.float64)
    return {"recency": recency, "importance": importance}


def _said_by(candidates: Candidates, speaker: int | None) -> NDArray[np.bool_]:
    if speaker is None:
        return np.zeros(len(candidates.speakers), np.bool_)
    return candidates.speakers == speaker


def contenders(
    scores: NDArray[np.float32], matches: NDArray[np.bool_], *, count: int
) -> NDArray[np.int64]:
    """Return which rows that match can be among the best: these, and what ties with the last of them.

    `top` of these alone gives what it gives of all that match, and needs the times and ids of few.

    Args:
        scores: float32 `[n]`; those that match are above all others, or the others are NaN.
        matches: Which rows match.
        count: How many of the best are wanted.
    """
    if 0 < count < len(scores):
        known = np.fmax(scores, np.float32(-np.inf))  # NaN would count as the highest
        known.partition(len(known) - count)
        matches = matches & (scores >= known[len(known) - count])
    return np.flatnonzero(matches)


def top(
    scores: NDArray[np.float32], created: NDArray[np.int64], ids: Sequence[str], *, count: int
) -> NDArray[np.int64]:
    """Return the rows with the highest scores, the highest first.

    Ties go to the newer, then to the one with the smaller id.

    Args:
        scores: float32 `[n]`, no NaN.
        created: When each was made, in any unit.
        ids: The id of each.
        count: How many rows are wanted; fewer are returned when there are fewer.
    """
    if count <= 0:
        return np.zeros(0, np.int64)
    sure = np.zeros(0, np.int64)
    rows = np.arange(len(scores))
    for keys in (scores, created):
        wanted = count - len(sure)
        if not 0 < wanted < len(rows):
            break
        of_rows = keys[rows]
        last = np.partition(of_rows, len(rows) - wanted)[len(rows) - wanted]
        sure = np.concatenate((sure, rows[of_rows > last]))
        rows = rows[of_rows == last]  # of which some are wanted, by the next key
    rows = np.concatenate((sure, rows))
    ranked = np.lexsort((-created[rows], -scores[rows]))
    by_score, by_time = scores[rows[ranked]], created[rows[ranked]]
    if ((by_score[1:] == by_score[:-1]) & (by_time[1:] == by_time[:-1])).any():
        rows = np.array(sorted(rows.tolist(), key=ids.__getitem__))
        ranked = np.lexsort((-created[rows], -scores[rows]))  # keeps the order of what ties
    return rows[ranked[:count]]
