"""The terms under which a text is indexed, and those of a query: words, in any script and language.

A memory is found by words when the terms of the query are among its own, so both come from the same
function of the text alone. `scripts.py` cuts a text, `languages.py` stems; here it comes together:

- case, accents and compatibility forms do not matter (NFKC, casefold): `cafe` finds `Café`;
- words are stemmed by their script, and in the language of the text too where that can be told;
- joined words are found whole and by their parts: `multi-agent` by `agent` and by `multiagent`;
- Chinese, Japanese, Korean and Thai, where no spaces part the words, are indexed by pairs of letters,
  Han characters also one by one, Korean words also whole and without their particle;
- an emoji is a term of its own, whatever the colour of its skin.

No text raises, and all of it takes linear time. How terms rank what they find is `retrieval.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

from tenure.languages import (
    MONTHS,
    is_hint,
    language,
    month_names,
    stem,
    stem_in,
    stop_words,
    without_particle,
)
from tenure.scripts import chunks, folded, ideographs, loanwords, pairs, parts, runs

TERMS_VERSION = 1
"""Rises whenever `terms` or `date_terms` gives something else, so that a stored index is made anew."""

MAX_TERM_CHARS = 64
"""What is longer is cut, so that long codes are one term if they begin alike; words are shorter."""

MAX_QUERY_TERMS = 256
"""How many terms of a query count: the first ones. A page of text has fewer that differ."""

_CACHED = 2**15  # chunks of which the terms are kept; some MB
_ENDING = re.compile(r"(?:['\u2019](?:s|re|ve|ll|d|m)|(?<=s)['\u2019])$", re.IGNORECASE)
_NOT = re.compile(r"(?<=n)['\u2019](?=t$)", re.IGNORECASE)
_GROUPING = re.compile(r"(?<=\d),(?=\d)")
_ORDINAL = re.compile(r"0*(\d+)(?:st|nd|rd|th)|0(\d)")
_VERSION = re.compile(r"[a-z]{1,3}(\d+(?:\.\d+)+)")
_FIGURES = re.compile(r"\d{4}-(\d\d)(?:-\d\d)?|(\d\d?)[月월]")
_QUESTION = re.compile("[?\uff1f\u061f\u037e\u2047-\u2049]")


def terms(text: str) -> list[str]:
    """Return the terms under which a text is indexed, in order, repeats kept."""
    return _analysed(text)[0]


def query_terms(text: str) -> list[str]:
    """Return the terms of a query: each once, in order, without stop words unless nothing else is left.

    A month in another language or in figures (`mayo`, `5月`, `2023-05`) is searched by its English name
    too, as `date_terms` has it.

    Returns:
        At most `MAX_QUERY_TERMS`; empty when the text has neither words nor pictograms.
    """
    found, told = _analysed(text)
    stop = _stop_terms(told)
    kept = [term for term in found if term not in stop] or found
    unique = dict.fromkeys(each for term in kept for each in (term, *_month(term)))
    return list(unique)[:MAX_QUERY_TERMS]


def date_terms(when: datetime) -> list[str]:
    """Return the terms under which a date is found: its day, its month by English name, its year."""
    return terms(f"{when.day} {MONTHS[when.month - 1]} {when.year}")


def has_question(text: str) -> bool:
    """Return whether a text asks something, as far as a question mark tells."""
    return _QUESTION.search(text) is not None


def words(text: str) -> list[str]:
    """Return the words of a text as written, joined ones apart and without `'s`."""
    return [run for chunk in chunks(text) for word in _words(chunk) for _, run in runs(word)]


def _analysed(text: str) -> tuple[list[str], str | None]:
    """Return the terms of a text, and its language if it can be told and is not English."""
    found: list[str] = []
    hints: set[str] = set()
    cut = chunks(text)
    for chunk in cut:
        of_chunk, of_language = (_kept if len(chunk) <= MAX_TERM_CHARS else _terms)(chunk)
        found += of_chunk
        hints.update(of_language)
    told = language(hints)
    if told is not None:
        found += (term for chunk in cut for term in _terms_in(told, chunk))
    return found, told


def _terms(chunk: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the terms of a chunk, and which of its words are hints of a language."""
    written = _words(chunk)
    words = [folded(word) for word in written]
    found = [term for word in words for term in _of_word(word)]
    if len(words) > 1:
        found += _joined(chunk, words)
    return tuple(found), tuple(filter(is_hint, words))


_kept = lru_cache(_CACHED)(_terms)


def _words(chunk: str) -> list[str]:
    """Return the words of a chunk as written, without what English adds by an apostrophe."""
    return parts(_NOT.sub("", _ENDING.sub("", chunk)))


def _of_word(word: str) -> Iterator[str]:
    """Yield the terms of a folded word that is joined to no other."""
    before = ""
    for kind, run in runs(word) if not word.isascii() else (("word", word),):
        if kind == "word":
            before = _plain(run)
            yield before
            if version := _VERSION.fullmatch(before):
                yield version[1]
            continue
        if before.isdecimal():  # 5月, 3시
            yield before + run[0]
        before = ""
        if kind == "hangul":
            whole = run[:MAX_TERM_CHARS]
            bare = without_particle(whole)
            if bare != whole and len(bare) != 2:
                yield bare
            if len(whole) > 2:
                yield whole
        elif kind == "han":
            yield from (word[:MAX_TERM_CHARS] for word in loanwords(run))
            if len(run) > 1:
                yield from ideographs(run)
        yield from (pair[:MAX_TERM_CHARS] for pair in pairs(run))


def _plain(word: str) -> str:
    """Return the term of a word in a script with spaces, or of a number."""
    word = word[:MAX_TERM_CHARS]
    if not any(map(str.isdecimal, word)):
        return stem(word)
    word = _GROUPING.sub("", word)
    if not word.isascii():
        word = "".join(str(int(char)) if char.isdecimal() else char for char in word)
    number = _ORDINAL.fullmatch(word)
    return (number[1] or number[2]) if number else word


def _joined(chunk: str, words: list[str]) -> Iterator[str]:
    """Yield the one term of words that are joined: `multiagent`, `555-1234`, `ann@example.com`."""
    if (
        all(map(str.isalpha, words))
        and ("." not in chunk or max(map(len, words)) == 1)
        and "@" not in chunk
    ):
        whole = "".join(words)
    else:
        whole = folded(chunk)
    if len(runs(whole[:MAX_TERM_CHARS])) == 1:
        yield _plain(whole)


def _terms_in(told: str, chunk: str) -> Iterator[str]:
    """Yield the terms that a chunk has in a language, beside those that it has in any."""
    for word in _words(chunk):
        word = word[: MAX_TERM_CHARS - len("es:")]
        if word.isalpha():
            yield f"{told}:{stem_in(told, word)}"


def _month(term: str) -> list[str]:
    """Return the term of the English month that a term means; nothing if it means none, or is that."""
    figures = _FIGURES.fullmatch(term)
    number = int(figures[1] or figures[2]) if figures else _month_terms().get(term, 0)
    return [stem(MONTHS[number - 1].lower())] if 1 <= number <= 12 else []


@lru_cache
def _month_terms() -> dict[str, int]:
    """Return which month a term means."""
    return {term: number for name, number in month_names() for term in _terms(name)[0]}


@lru_cache
def _stop_terms(told: str | None) -> frozenset[str]:
    """Return the terms of the stop words of a language, `None` for English."""
    words = stop_words(told)
    found = {term for word in words for term in _terms(word)[0]}
    if told is not None:
        found.update(term for word in words for term in _terms_in(told, word))
    return frozenset(found)
