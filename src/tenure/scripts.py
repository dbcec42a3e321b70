"""How texts of any script are cut: into chunks, their parts, and pairs where no spaces part the words.

Everything here looks at characters only, knows no language, and takes linear time. `languages.py` knows
stems and stop words; `terms.py` makes the terms of an index of both.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

# Marks that belong to words and that `\w` leaves out. Blocks of Indic and neighbouring scripts are taken
# whole from their first mark on: what little punctuation they hold becomes a character of a word.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0711-\u07f3\u0816-\u082d\u0859-\u085b\u0898-\u08e1"
    "\u08e3-\u0963\u0971-\u0df3\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ecd\u0f18\u0f19\u0f35\u0f37\u0f39"
    "\u0f3e-\u0f84\u0f86-\u0fbc\u102b-\u103e\u1056-\u109d\u135d-\u135f\u1712-\u1734\u1752-\u17d3\u17dd"
    "\u180b-\u180d\u1a17-\u1a1b\u1a55-\u1a7f\u1ab0-\u1b44\u1b6b-\u1b73\u1b80-\u1bf3\u1c24-\u1c37"
    "\u1cd0-\u1dff\u302a-\u302f\u3099\u309a\ua66f-\ua67d\ua802-\ua827\ua880-\ua8c5\ua8e0-\ua953"
    "\ua980-\ua9c0\uaa29-\uaa4d\uaa7b-\uaac1\uabe3-\uabed\ufb1e\ufe20-\ufe2f\U00011000-\U00011fff"
)
_HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_KATAKANA = "\u30a1-\u30ff\u31f0-\u31ff"
_KANA = "\u3041-\u309f" + _KATAKANA + "\U0001aff0-\U0001b16f"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_THAI = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3"  # Lao, Burmese, Khmer too
)

_EMOJI = (
    "[\U0001f1e6-\U0001f1ff]{2}"  # a flag
    "|[\u2190-\u21ff\u2300-\u23ff\u2460-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff]"  # but not the colours of skin
)
_CHUNK = re.compile(
    rf"[\w{_MARKS}]+"
    rf"(?:(?:[-\u2010.@'\u2019]|(?<=\d),(?=\d{{3}}(?!\d)))[\w{_MARKS}]+)*"
    r"(?:(?<!\w\w)(?:\+\+|#)(?!\w))?"  # C++, C#
    rf"|{_EMOJI}"
)
_CROWD = re.compile(r"[^\w\s\x00-\x7f]{30}")
_SPLIT = re.compile(r"[-\u2010_@'\u2019]+|(?<!\d)\.|\.(?!\d)")
_HUMP = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z][a-z])")
_RUN = re.compile(
    rf"(?P<hangul>[{_HANGUL}]+)|(?P<han>[{_HAN}{_KANA}]+)|(?P<thai>[{_THAI}]+)"
    rf"|(?P<word>[^{_HANGUL}{_HAN}{_KANA}{_THAI}]+)"
)
_UNSPACED = re.compile(f"[{_HANGUL}{_HAN}{_KANA}{_THAI}]")
_IDEOGRAPH = re.compile(f"[{_HAN}]")
_LOANWORD = re.compile(f"[{_KATAKANA}]{{3,}}")
_CLUSTER = re.compile(rf"[^{_MARKS}][{_MARKS}]*|[{_MARKS}]+")

_ACCENTS = re.compile("(?<=[a-z\u0250-\u02af\u0370-\u03ff])[\u0300-\u036f]+")
_POINTS = re.compile(
    "[\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed\u200b-\u200f]"
)
_PLAIN = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ё": "е"}
    | {"أ": "ا", "إ": "ا", "آ": "ا", "ٱ": "ا", "ى": "ي", "ی": "ي", "ک": "ك"}
)


def chunks(text: str) -> list[str]:
    """Return what stands between spaces and punctuation, in order, composed (NFKC).

    A chunk is a word, or words joined by one of ``-_.@'`` (`snake_case`, `v1.5`, `don't`, an address), or a
    number with its thousands (`1,000`), or one emoji or other pictogram. Without spaces a whole sentence is
    one chunk.
    """
    if not text.isascii():
        # Composing sorts marks that follow each other in quadratic time, so crowds of them are parted.
        text = unicodedata.normalize("NFKC", _CROWD.sub(r"\g<0> ", text))
    return _CHUNK.findall(text)


def folded(word: str) -> str:
    """Return a composed word without case, and without the accents and points that people leave out.

    Accents go from Latin and Greek letters (`café`), vowel points from Arabic and Hebrew. Marks that make
    another letter stay: Japanese dakuten, the short `й`, the vowels of Indic scripts and Thai.
    """
    word = word.casefold()
    if word.isascii():
        return word
    word = _ACCENTS.sub("", unicodedata.normalize("NFD", word))
    return _POINTS.sub("", unicodedata.normalize("NFC", word).translate(_PLAIN))


def parts(chunk: str) -> list[str]:
    """Return the words that a chunk is made of, as written: `camelCase` has two, `v1.5` is one."""
    found: list[str] = []
    for piece in _SPLIT.split(chunk):
        if piece:
            found += _HUMP.split(piece) if piece.isascii() else (piece,)
    return found


def runs(word: str) -> list[tuple[str, str]]:
    """Return the stretches of a word that are in scripts of one kind, each with the name of the kind.

    The kinds are `hangul`, `han` (with kana), `thai` (with its neighbours, which have no spaces either),
    and `word` for all other scripts.
    """
    return [(match.lastgroup or "", match.group()) for match in _RUN.finditer(word)]


def is_unspaced(word: str) -> bool:
    """Return whether any of a word is in a script that is written without spaces, or with particles."""
    return _UNSPACED.search(word) is not None


def pairs(run: str) -> list[str]:
    """Return each two neighbouring letters of a run, a letter with its marks; one letter by itself."""
    letters = _CLUSTER.findall(run)
    if len(letters) < 2:
        return letters
    return [first + second for first, second in pairwise(letters)]


def ideographs(run: str) -> list[str]:
    """Return the Han characters of a run."""
    return _IDEOGRAPH.findall(run)


def loanwords(run: str) -> list[str]:
    """Return the stretches of three or more katakana in a run: mostly whole words, as in コーヒー."""
    return _LOANWORD.findall(run)
