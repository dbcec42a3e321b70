"""The formula that ranks memories, against a slow one in loops; likeness, the best rows, who is named."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.retrieval import (
    Candidates,
    Postings,
    Weights,
    centre_of,
    contenders,
    named_speaker,
    scores,
    similarities,
    top,
)

many = settings(deadline=None, derandomize=True, max_examples=200)
ONLY = Weights(group=0, meaning=0, meaning_alone=0, speaker=0)


@dataclass(kw_only=True)
class Case:
    """What `scores` is asked, with the count of each term in each memory."""

    candidates: Candidates
    counts: np.ndarray[Any, Any]  # [terms, n]
    similarities: np.ndarray[Any, Any] | None = None
    speaker: int | None = None
    weights: Weights = field(default_factory=Weights)

    @property
    def postings(self) -> Postings:
        return [
            (np.flatnonzero(counts), counts[counts > 0].astype(np.float32))
            for counts in self.counts
        ]

    def signals(self) -> dict[str, np.ndarray[Any, Any]]:
        return scores(
            self.candidates,
            self.postings,
            similarities=self.similarities,
            speaker=self.speaker,
            weights=self.weights,
        )

    def total(self) -> np.ndarray[Any, Any]:
        return np.sum(list(self.signals().values()), axis=0)


def bare(counts: list[list[float]], **known: Any) -> Case:
    """Notes of nobody in no conversation, ten terms long each, with these counts of terms."""
    n = len(counts[0])
    none = np.full(n, -1)
    candidates = Candidates(
        lengths=np.full(n, 10, np.float32),
        before=none,
        after=none,
        groups=none,
        speakers=none,
        importance=np.full(n, 0.5, np.float32),
        ages_days=np.zeros(n, np.float32),
    )
    about = {name: np.array(value) for name, value in known.items() if hasattr(candidates, name)}
    rest = {name: value for name, value in known.items() if name not in about}
    return Case(candidates=replace(candidates, **about), counts=np.array(counts), **rest)


def chat(counts: list[list[float]], **known: Any) -> Case:
    """The same in one conversation, in this order."""
    n = len(counts[0])
    after = [*range(1, n), -1]
    return bare(counts, before=list(range(-1, n - 1)), after=after, **known)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Conversations cut at random, with gaps in all that may be missing."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, terms = draw(st.integers(1, 40)), draw(st.integers(0, 6))
    follows = np.append(False, random.random(n - 1) < 0.8)
    starts = np.cumsum(~follows) - 1
    rows = np.arange(n)
    candidates = Candidates(
        lengths=random.integers(1, 60, n).astype(np.float32),
        before=np.where(follows, rows - 1, -1),
        after=np.append(np.where(follows[1:], rows[1:], -1), -1),
        groups=np.where(random.random(n) < 0.9, starts // 2, -1),
        speakers=random.integers(-1, 3, n),
        importance=random.random(n).astype(np.float32),
        ages_days=random.normal(50, 40, n).astype(np.float32),
        asks=random.random(n) < 0.4 if draw(st.booleans()) else None,
    )
    alike = random.normal(0.1, 0.3, n).clip(-1, 1).astype(np.float32)
    alike[random.random(n) < 0.2] = np.nan
    return Case(
        candidates=candidates,
        counts=random.integers(0, 4, (terms, n)) * (random.random((terms, n)) < 0.4),
        similarities=alike if draw(st.booleans()) else None,
        speaker=draw(st.sampled_from([None, 0, 1, 2])),
        weights=Weights(recency=draw(st.sampled_from([0.0, 0.2])), importance=0.1),
    )


# --- the slow, obviously right reference -----------------------------------------------------------


def bm25(count: float, length: float, having: int, n: int, mean: float) -> float:
    idf = math.log(1 + (n - having + 0.5) / (having + 0.5))
    return idf * count * 1.9 / (count + 0.9 * (0.6 + 0.4 * length / max(mean, 1)))


def reference(case: Case) -> list[float]:
    """The score of each memory, by the definition, in loops."""
    c, w, n = case.candidates, case.weights, len(case.candidates.lengths)

    def step(row: int, links: np.ndarray[Any, Any], steps: int) -> int:
        for _ in range(steps):
            row = int(links[row]) if row >= 0 else -1
        return row

    def shares(row: int) -> list[tuple[int, float]]:
        first = step(row, c.before, 1)
        asked = c.asks is not None and first >= 0 and c.asks[first]
        near = [(row, 1.0), (first, 0.9 if asked else 0.5), (step(row, c.before, 2), 0.3)]
        near += [(step(row, c.after, 1), 0.5), (step(row, c.after, 2), 0.3)]
        return [(at, share) for at, share in near if at >= 0]

    def of_texts(counts: list[list[float]], lengths: list[float], near: Any) -> list[float]:
        size, total, wanted = len(lengths), [0.0] * len(lengths), 0.0
        mean = sum(lengths) / size
        for of_term in counts:
            having = sum(count > 0 for count in of_term)
            gain = [bm25(of_term[i], lengths[i], having, size, mean) for i in range(size)]
            wanted += math.log(1 + (size - having + 0.5) / (having + 0.5))
            for i in range(size):
                total[i] += max(share * gain[at] for at, share in near(i))
        most = max([wanted, *total]) or 1.0
        return [each / most for each in total]

    words = of_texts(case.counts.tolist(), c.lengths.tolist(), shares)
    ids = list(range(int(c.groups.max()) + 1))
    days = [[sum(row[c.groups == g]) for g in ids] for row in case.counts]
    lengths = [float(c.lengths[c.groups == g].sum()) for g in ids]
    of_days = of_texts(days, lengths, lambda i: [(i, 1.0)]) if ids else []
    alike = [0.0] * n
    if case.similarities is not None and not np.isnan(case.similarities).all():
        floor = max(0.0, float(np.nanmin(case.similarities)) - 0.001)
        own = [0.0 if math.isnan(s) else max(0.0, s - floor) for s in case.similarities.tolist()]
        for i in range(n):
            beside = (step(i, c.before, 1), step(i, c.after, 1))
            alike[i] = own[i] + 0.3 * sum(own[at] for at in beside if at >= 0)
        alike = [each / (max(alike) or 1.0) for each in alike]
    covered = max(words)
    total: list[float] = []
    for i in range(n):
        score = words[i] + (0.3 * of_days[c.groups[i]] if c.groups[i] >= 0 else 0.0)
        score += (0.4 * covered + 1.0 * (1 - covered)) * alike[i]
        score += 0.4 if case.speaker is not None and c.speakers[i] == case.speaker else 0.0
        if score > 0:
            score += (
                w.recency * 0.5 ** (max(0.0, c.ages_days[i]) / 30) + w.importance * c.importance[i]
            )
        total.append(score)
    return total


@many
@given(cases())
def test_scores_are_those_of_the_definition(case: Case) -> None:
    """The sum of the signals is the score of the formula, written in loops, within 1e-4."""
    signals = case.signals()
    assert all(signal.dtype == np.float32 and (signal >= 0).all() for signal in signals.values())
    assert case.total() == pytest.approx(reference(case), abs=1e-4)


@many
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(case: Case, random: Any) -> None:
    """A score belongs to a memory, wherever its row is."""
    n = len(case.candidates.lengths)
    order = np.array(random.sample(range(n), n))
    place = np.append(np.argsort(order), -1)  # -1 stays -1
    c = case.candidates
    moved = Candidates(
        lengths=c.lengths[order],
        before=place[c.before[order]],
        after=place[c.after[order]],
        groups=c.groups[order],
        speakers=c.speakers[order],
        importance=c.importance[order],
        ages_days=c.ages_days[order],
        asks=None if c.asks is None else c.asks[order],
    )
    alike = None if case.similarities is None else case.similarities[order]
    other = replace(case, candidates=moved, counts=case.counts[:, order], similarities=alike)
    assert other.total() == pytest.approx(case.total()[order], abs=1e-5)


def test_many_terms_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long query over many memories does not fill the memory, and scores the same."""
    random = np.random.default_rng(1)
    case = chat((random.random((50, 30)) < 0.2).astype(float).tolist(), groups=[0] * 15 + [1] * 15)
    whole = case.total()
    monkeypatch.setattr("tenure.retrieval._CELLS", 70)
    assert case.total() == pytest.approx(whole, abs=1e-6)


# --- each signal -----------------------------------------------------------------------------------


def test_rare_terms_say_more_and_repeats_say_less() -> None:
    """A memory with the rarer term is ahead, and one with both; a repeat adds less than another term."""
    case = bare([[1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 2, 0, 0, 0]])
    words = case.signals()["words"]
    assert words[2] > words[3] > words[0] > words[4] == 0
    twice = bare([[2, 1, 0], [0, 1, 0]]).signals()["words"]
    assert twice[1] > twice[0]


def test_of_equal_counts_the_shorter_text_is_ahead() -> None:
    """A term counts more in a short text."""
    words = bare([[1, 1, 0]], lengths=[5.0, 50.0, 20.0]).signals()["words"]
    assert words[0] > words[1] > 0


def test_words_are_a_share_of_all_that_is_asked_for() -> None:
    """A memory that has all terms has 1; where none has more than some, none has 1."""
    assert bare([[1, 0, 0], [1, 0, 0]]).signals()["words"][0] == pytest.approx(1)
    some = bare([[1, 0, 0], [0, 0, 0], [0, 0, 0]]).signals()["words"][0]
    assert 0.1 < some < 0.3  # one of three terms, and the two that nobody has are rarer


def test_neighbours_lend_their_words() -> None:
    """A term counts half in the next memory and less in the one beyond; nothing from further off."""
    signals = chat([[0, 0, 0, 1, 0, 0, 0]], weights=ONLY).signals()
    shares = signals["neighbours"] / signals["words"][3]
    assert shares == pytest.approx([0, 0.3, 0.5, 0, 0.5, 0.3, 0])
    assert np.flatnonzero(signals["words"]).tolist() == [3]


def test_a_term_counts_once_in_the_best_of_its_places() -> None:
    """Neighbours that repeat a term lend it once, and lend nothing to a memory that has it."""
    signals = chat([[1, 0, 1, 1, 0, 0, 0, 0]], weights=ONLY).signals()
    assert signals["neighbours"][1] == pytest.approx(0.5 * signals["words"][0])
    assert signals["neighbours"][2] == 0
    other = chat([[1, 0, 0, 0], [0, 0, 1, 0]], weights=ONLY).signals()
    assert other["neighbours"][1] == pytest.approx(0.5 * (other["words"][0] + other["words"][2]))


def test_an_answer_borrows_the_words_of_its_question() -> None:
    """After a question a memory has nearly all of the question's words; before it, as always."""
    asks = [False, False, True, False, False]
    signals = chat([[0, 0, 1, 0, 0]], weights=ONLY, asks=asks).signals()
    assert signals["neighbours"] / signals["words"][2] == pytest.approx([0.3, 0.5, 0, 0.9, 0.3])


def test_a_group_is_one_text() -> None:
    """What a conversation's day says lifts all of its memories, and nothing that is in no group."""
    signals = bare([[1, 0, 0, 0, 0], [0, 1, 0, 1, 0]], groups=[0, 0, 0, 1, -1]).signals()
    group = signals["group"]
    assert group[0] == group[1] == group[2] > group[3] > group[4] == 0
    assert group.max() <= np.float32(0.3)


def test_meaning_decides_where_words_do_not() -> None:
    """Meaning weighs .4 where all that is asked for is said, and 1 where nothing is."""
    alike = np.array([0.2, 0.8, 0.5], np.float32)
    said = bare([[1, 0, 0]], similarities=alike).signals()["meaning"]
    unsaid = bare([[0, 0, 0]], similarities=alike).signals()["meaning"]
    assert said.max() == pytest.approx(0.4)
    assert unsaid.max() == pytest.approx(1)
    assert unsaid.argsort().tolist() == [0, 2, 1]


def test_a_single_memory_is_found_by_meaning() -> None:
    """The least alike of few memories is found too; one without a vector is not."""
    one = bare([[0]], similarities=np.array([0.7], np.float32))
    assert one.total() == pytest.approx([1])
    two = bare([[0, 0, 0]], similarities=np.array([0.7, 0.8, np.nan], np.float32)).total()
    assert two[1] > two[0] > two[2] == 0


def test_likeness_below_nothing_is_none() -> None:
    """What has less in common with the query than the average is not found by meaning."""
    alike = np.array([-0.3, 0.2, 0.0, 0.4], np.float32)
    meaning = bare([[0, 0, 0, 0]], similarities=alike).total()
    assert meaning == pytest.approx([0, 0.5, 0, 1])


def test_without_any_vector_words_still_rank() -> None:
    """Nothing but NaN, or no vector of the query, leaves the words."""
    blank = np.full(2, np.nan, np.float32)
    for alike in (None, blank):
        assert bare([[1, 0]], similarities=alike).total() == pytest.approx([1, 0])


def test_who_is_named_is_found() -> None:
    """What the named speaker said is lifted, by itself too; nobody is not a speaker."""
    case = bare([[0, 0, 0]], speakers=[0, 1, -1], speaker=1)
    assert case.total() == pytest.approx([0, 0.4, 0])
    assert not bare([[0, 0]], speakers=[-1, 0], speaker=None).total().any()


def test_recency_and_importance_lift_only_what_is_found() -> None:
    """Recency halves with its half-life, importance is as given; neither finds anything by itself."""
    weights = Weights(recency=0.2, importance=0.1, half_life_days=10)
    case = bare(
        [[1, 1, 1, 0]], ages_days=[0.0, 10, -5, 0], importance=[1, 0.5, 0, 1], weights=weights
    )
    signals = case.signals()
    assert signals["recency"] == pytest.approx([0.2, 0.1, 0.2, 0])
    assert signals["importance"] == pytest.approx([0.1, 0.05, 0, 0])
    assert not Case(candidates=case.candidates, counts=case.counts).signals()["recency"].any()


def test_nothing_asked_finds_nothing() -> None:
    """Without terms, vector and speaker every score is 0; without memories there is none."""
    assert not chat([[0, 0, 0]], weights=Weights(recency=1, importance=1)).total().any()
    empty = Case(candidates=bare([[]]).candidates, counts=np.zeros((2, 0)))
    assert all(signal.shape == (0,) for signal in empty.signals().values())


# --- likeness --------------------------------------------------------------------------------------


def unit(*rows: list[float]) -> np.ndarray[Any, Any]:
    vectors = np.array(rows, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_likeness_is_cosine_or_nearness() -> None:
    """Cosine is from -1 to 1, the other 1 / (1 + distance); the length of the query does not matter."""
    vectors = unit([1, 0], [0, 1], [-1, 0], [1, 1])
    query = np.array([3, 0], np.float32)
    half = math.sqrt(0.5)
    assert similarities(vectors, query) == pytest.approx([1, 0, -1, half], abs=1e-6)
    distances = [0, math.sqrt(2), 2, math.sqrt(2 - 2 * half)]
    nearness = similarities(vectors, query, "euclidean")
    assert nearness == pytest.approx([1 / (1 + d) for d in distances], abs=1e-3)
    assert similarities(vectors, np.zeros(2, np.float32)).tolist() == [0, 0, 0, 0]


def test_a_row_without_a_vector_has_no_likeness() -> None:
    """NaN stays NaN, and does not touch the centre of the others."""
    vectors = unit([1, 0], [0, 1])
    gap = np.vstack([vectors, np.full((1, 2), np.nan, np.float32)])
    query = np.array([1, 0], np.float32)
    for centre in (None, centre_of(gap)):
        alike = similarities(gap, query, centre=centre)
        assert np.isnan(alike).tolist() == [False, False, True]
    assert centre_of(gap).mean == pytest.approx(centre_of(vectors).mean)


def test_from_the_centre_common_parts_do_not_count() -> None:
    """Of vectors that point much the same way, those that differ as the query does are alike."""
    random = np.random.default_rng(2)
    vectors = unit(*(random.normal(0, 0.2, 30) + 1 for _ in range(9_000)))
    query = vectors[7] + random.normal(0, 0.02, 30).astype(np.float32)
    plain = similarities(vectors, query)
    alike = similarities(vectors, query, centre=centre_of(vectors))
    assert plain.min() > 0.8
    assert abs(float(np.median(alike))) < 0.05
    assert alike.argmax() == plain.argmax() == 7
    mean = vectors.astype(np.float64).mean(0) * 9_000 / 9_010
    away, own = query / np.linalg.norm(query) - mean, vectors - mean
    expected = own @ away / np.linalg.norm(own, axis=1) / np.linalg.norm(away)
    assert alike == pytest.approx(expected, abs=1e-4)


def test_few_vectors_are_seen_nearly_as_they_are() -> None:
    """The centre of a few memories is near the origin: each is still like what says the same."""
    vectors = unit([1, 0.1], [1, 0.2])
    alike = similarities(vectors, vectors[1], centre=centre_of(vectors))
    assert 0.9 < alike[0] < alike[1] == pytest.approx(1, abs=1e-6)
    assert centre_of(np.zeros((0, 2), np.float32)).mean.tolist() == [0, 0]


@many
@given(st.integers(1, 30), st.integers(0, 2**32), st.booleans())
def test_likeness_stays_in_bounds(n: int, seed: int, same: bool) -> None:
    """Whatever the vectors, equal ones included, likeness is a number from -1 to 1."""
    random = np.random.default_rng(seed)
    vectors = unit(*random.normal(size=(1 if same else n, 5)).tolist())
    vectors = np.repeat(vectors, n, axis=0) if same else vectors
    alike = similarities(vectors, vectors[0], centre=centre_of(vectors))
    assert (np.abs(alike) <= 1).all()


# --- the best rows ---------------------------------------------------------------------------------


@many
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5]), st.integers(0, 2)), max_size=30),
    st.integers(0, 40),
    st.randoms(use_true_random=False),
)
def test_the_best_rows_are_exact(rows: list[tuple[float, int]], count: int, random: Any) -> None:
    """By score, then the newer, then the smaller id, at the border too."""
    ids = [f"m{number}" for number in random.sample(range(100), len(rows))]
    values = np.array([score for score, _ in rows], np.float32)
    created = np.array([when for _, when in rows], np.int64)
    expected = sorted(range(len(rows)), key=lambda r: (-rows[r][0], -rows[r][1], ids[r]))
    assert top(values, created, ids, count=count).tolist() == expected[:count]


@many
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, math.nan]), max_size=30),
    st.sampled_from([0.0, 0.25, 0.6]),
    st.integers(0, 40),
)
def test_the_best_are_among_the_contenders(
    values: list[float], threshold: float, count: int
) -> None:
    """All of them, with every tie at the border; a NaN, or less than the threshold, never is."""
    scores_ = np.array(values, np.float32)
    found = contenders(scores_, scores_ >= threshold, count=count).tolist()
    matching = [row for row, value in enumerate(values) if value >= threshold]
    if not count:
        assert found == matching
        return
    last = sorted((values[row] for row in matching), reverse=True)[:count]
    assert found == [row for row in matching if values[row] >= last[-1]]


def test_pages_are_parts_of_one_ranking() -> None:
    """The first rows of a longer page are those of a shorter one."""
    values = np.random.default_rng(3).integers(0, 50, 5_000).astype(np.float32)
    created = np.arange(5_000) // 3
    ids = [f"m{number:04}" for number in range(5_000)]
    whole = top(values, created, ids, count=5_000).tolist()
    assert all(
        top(values, created, ids, count=n).tolist() == whole[:n] for n in (1, 10, 777, 9_999)
    )


# --- who is named ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("What did Caroline say?", "Caroline Lee"),
        ("caroline's cat", "Caroline Lee"),
        ("Caroline’s", "Caroline Lee"),
        ("CAROLINE LEE", "Caroline Lee"),
        ("What about Mr. Lee?", "Caroline Lee"),
        ("carolines", None),
        ("Did Caroline meet Ann?", None),
        ("Did Ann see Ann Smith?", None),
        ("Ann Smith's dog", "Ann Smith"),
        ("Ann's dog", "Ann"),
        ("the annual plan", None),
        ("José or Jose", "José"),
        ("jose", "José"),
        ("Will it rain, and will he come?", None),
        ("What does Will like?", "Will"),
        ("What do you hope for?", None),
        ("What does Hope want?", "Hope"),
        ("花子さんの猫", "山田 花子"),
        ("山田花子", "山田 花子"),
        ("민수는 어디 있어?", "민수"),
        ("김민수는 어디 있어?", "김민수"),
        ("Где живёт Алёна?", "Алена"),
        ("", None),
        ("nobody", None),
    ],
)
def test_a_query_names_one_speaker(query: str, named: str | None) -> None:
    """The whole name, or its first or last word, in any case and script; two names are none."""
    speakers = ["Caroline Lee", "Ann", "Ann Smith", "José", "Will", "Hope", "山田 花子", "민수"]
    speakers += ["김민수", "Алена"]
    found = named_speaker(query, speakers)
    assert (None if found is None else speakers[found]) == named


def test_a_name_that_two_share_names_neither() -> None:
    """Where two speakers have the same first name, only the whole name tells."""
    speakers = ["Ann Lee", "Ann Smith", "", "?"]
    assert named_speaker("Ann's cat", speakers) is None
    assert named_speaker("Ann Smith's cat", speakers) == 1
    assert named_speaker("Ann", []) is None


@many
@given(st.text(st.characters(exclude_categories=())), st.lists(st.text(max_size=8), max_size=5))
def test_naming_never_raises(query: str, speakers: list[str]) -> None:
    """Any text and any names will do."""
    found = named_speaker(query, speakers)
    assert found is None or 0 <= found < len(speakers)
