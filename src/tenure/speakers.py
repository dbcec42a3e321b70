"""Which speaker a query names: `What did Caroline say?` is about what Caroline said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tenure.languages import stop_words
from tenure.scripts import folded, is_unspaced
from tenure.terms import words

_ALSO_WORDS = """april art august bill dawn drew faith frank grace grant guy hope jack joy june mark may
    pat rich rose summer sue"""
_COMMON = frozenset((*_ALSO_WORDS.split(), *stop_words(None)))
"""Names that are English words too; with a capital, and not as the first word, they are names."""


def named_speaker(query: str, speakers: Sequence[str]) -> int | None:
    """Return the number of the one speaker whom a query names; `None` if it names nobody, or several.

    A speaker is named by the whole name, or by its first or its last word: `Caroline's` names Caroline Lee,
    unless another Caroline speaks too. Case does not matter, but for names that are English words as well
    (`Will`). Names in scripts without spaces are found inside of words: `花子さん` names
    花子, and 山田 花子.

    Args:
        query: Any text.
        speakers: Their names, each once.
    """
    whole: dict[tuple[str, ...], set[int]] = {}
    ends: dict[tuple[str, ...], set[int]] = {}
    inside: dict[str, set[int]] = {}
    longest = 0
    for number, name in enumerate(speakers):
        in_name = tuple(map(folded, words(name)))
        if any(map(is_unspaced, in_name)):
            for part in {folded(name), *(part for part in in_name if len(part) > 1)}:
                inside.setdefault(part, set()).add(number)
        elif in_name:
            longest = max(longest, len(in_name))
            whole.setdefault(in_name, set()).add(number)
            for part in (in_name[:1], in_name[-1:]):
                ends.setdefault(part, set()).add(number)
    apart = _named_apart(words(query), {**ends, **whole}, longest)  # Ann is Ann, and not Ann Lee
    named = apart | _named_inside(folded(query), inside)
    return named.pop() if len(named) == 1 else None


def _named_apart(
    written: list[str], names: Mapping[tuple[str, ...], set[int]], longest: int
) -> set[int]:
    """Return who is named by words of their own; of names at one place the longest counts."""
    asked = [folded(word) for word in written]
    named: set[int] = set()
    at = 0
    while at < len(asked):
        for length in range(min(longest, len(asked) - at), 0, -1):
            who = names.get(tuple(asked[at : at + length]))
            if who is not None and (length > 1 or _is_name(written[at], at)):
                named |= who
                at += length - 1
                break
        at += 1
    return named


def _is_name(word: str, at: int) -> bool:
    return folded(word) not in _COMMON or (at > 0 and word[:1].isupper())


def _named_inside(query: str, names: Mapping[str, Iterable[int]]) -> set[int]:
    """Return who is named somewhere in the text; what belongs to a longer name is no shorter one."""
    named: set[int] = set()
    for name in sorted(names, key=len, reverse=True):
        if name in query:
            named.update(names[name])
            query = query.replace(name, " ")
    return named
