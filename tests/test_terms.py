"""Terms of texts and of queries, in any script: what finds what, and that no text is too much."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import languages
from tenure.terms import (
    MAX_QUERY_TERMS,
    MAX_TERM_CHARS,
    TERMS_VERSION,
    date_terms,
    has_question,
    query_terms,
    terms,
    words,
)

texts = st.text(st.characters(exclude_categories=()), max_size=200)  # lone surrogates too
many = settings(deadline=None, derandomize=True, max_examples=300)


def finds(query: str, memory: str) -> bool:
    """Whether a query has any of the terms of a memory."""
    return not set(query_terms(query)).isdisjoint(terms(memory))


# --- words -----------------------------------------------------------------------------------------


def test_terms_keep_order_and_repeats() -> None:
    """A text has its terms in order, each as often as it is said."""
    assert terms("Tea, then tea.") == ["tea", "then", "tea"]


@pytest.mark.parametrize(
    ("query", "memory"),
    [
        ("running", "she runs"),
        ("cafe", "Café"),
        ("CAFÉ", "the cafe"),
        ("Strasse", "die Straße"),
        ("Muller", "Herr Müller"),
        ("Ｔｏｋｙｏ", "tokyo"),  # full width
        ("buy", "I bought bread"),
        ("child", "two children"),
        ("Caroline", "Caroline's cat"),
        ("Caroline", "Caroline’s cat"),
        ("boss", "the bosses' meeting"),
        ("dont", "Don't!"),
        ("Oslo", "Łódź, Oslo"),
        ("Lodz", "Łódź"),
    ],
)
def test_forms_of_a_word_find_each_other(query: str, memory: str) -> None:
    """Case, accents, compatibility forms, endings and irregular forms do not matter."""
    assert finds(query, memory)
    assert finds(memory, query)


@pytest.mark.parametrize(
    ("query", "memory"),
    [("cat", "category"), ("й", "и"), ("か", "が"), ("पल", "पूल"), ("5", "50"), ("1.5", "15")],
)
def test_other_words_do_not_find_each_other(query: str, memory: str) -> None:
    """What is another word or another letter is another term."""
    assert not finds(query, memory)


@pytest.mark.parametrize("query", ["don't use agents", "and/or agents", 'agents\' "use" (not)'])
def test_c39_apostrophes_and_slashes_in_a_query(query: str) -> None:
    """C39: an apostrophe, slash or quote in a query is no syntax; its words are found."""
    assert finds(query, "We use one agent.")


def test_c40_a_hyphen_is_no_operator() -> None:
    """C40: `multi-agent` finds itself, its parts, and its other spellings."""
    for memory in ("a multi-agent system", "multiagent", "multi agent", "an agent", "Multi-Agent"):
        assert finds("multi-agent", memory)
    assert finds("agent", "multi-agent")
    assert finds("multiagent", "multi-agent")
    assert len(set(query_terms("multi-agent")) & set(terms("multi-agent"))) == 3


@pytest.mark.parametrize(
    "query", ['"', "* OR 1=1 --", "NEAR(", "col:", "'; DROP TABLE", "%_", "\\"]
)
def test_search_syntax_means_nothing(query: str) -> None:
    """No query is a syntax error, and signs alone find nothing."""
    assert all(term.isalnum() for term in query_terms(query))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v1.5", ["v1.5", "1.5"]),
        ("$50k", ["50k"]),
        ("1,000,000", ["1000000"]),
        ("8th", ["8"]),
        ("3.14", ["3.14"]),
        ("007 05", ["007", "5"]),
        ("٢٠٢٣", ["2023"]),
        ("२०२३", ["2023"]),
        ("555-1234", ["555", "1234", "555-1234"]),
        ("ann@example.com", ["ann", "exampl", "com", "ann@example.com"]),
        ("snake_case", ["snake", "case", "snakecas"]),
        ("camelCase", ["camel", "case", "camelcas"]),
        ("HTTPServer", ["http", "server", "httpserver"]),
        ("PDFs", ["pdfs"]),
        ("U.S.A.", ["u", "s", "a", "usa"]),
        ("l'homme", ["l", "homm", "lhomm"]),
        ("they're I'd we've", ["they", "i", "we"]),
        ("C++ and C#", ["c++", "and", "c#"]),
        ("end... start", ["end", "start"]),
        ("https://example.com/a?b=c", ["https", "exampl", "com", "example.com", "a", "b", "c"]),
    ],
)
def test_what_is_joined_is_found_by_its_parts_too(text: str, expected: list[str]) -> None:
    """Numbers are whole; names of things, addresses and joined words are whole and in parts."""
    assert terms(text) == expected


def test_an_emoji_is_a_term() -> None:
    """Emoji are found, whatever the colour of their skin; a family by each of its members."""
    assert terms("👍🏽 ok 👍") == ["👍", "ok", "👍"]
    assert terms("👨‍👩‍👧") == ["👨", "👩", "👧"]
    assert terms("🇰🇷🇯🇵") == ["🇰🇷", "🇯🇵"]
    assert finds("❤️", "I ❤ Rome")


# --- scripts and languages -------------------------------------------------------------------------


def test_chinese_is_indexed_by_pairs_and_characters() -> None:
    """Han text has each pair of neighbours and each character, so that one character finds something."""
    assert terms("我的猫") == ["我", "的", "猫", "我的", "的猫"]
    assert query_terms("猫") == ["猫"]
    assert finds("猫", "他养了一只猫。")
    assert finds("北京", "我住在北京")


def test_japanese_is_indexed_by_pairs_and_loanwords() -> None:
    """Kana and Han are one run; a loanword in katakana is a term beside its pairs."""
    found = terms("コーヒーを飲む")
    assert found[0] == "コーヒー"
    assert {"飲", "を飲", "飲む"} <= set(found)
    assert finds("珈琲とコーヒー", "ｺｰﾋｰが好き")  # half width
    assert finds("猫", "猫が好き")


def test_korean_is_indexed_by_words_without_particles_and_pairs() -> None:
    """A Korean word is found with any particle, and inside of a compound."""
    assert terms("한국어를") == ["한국어", "한국어를", "한국", "국어", "어를"]
    assert finds("개", "개를 키워요")
    assert finds("커피가", "커피는 좋아요")
    assert finds("대학교", "서울대학교에서")


def test_thai_is_indexed_by_pairs() -> None:
    """Thai has no spaces; vowels and tones stay with their letter."""
    assert terms("กินข้าว") == ["กิน", "นข้า", "ข้าว"]
    assert finds("ข้าว", "ฉันกินข้าวผัด")


def test_scripts_in_one_word_are_parted() -> None:
    """A word of several scripts has the terms of each, and a number with what is counted."""
    assert terms("Phone手机") == ["phone", "手", "机", "手机"]
    assert terms("5月8日") == ["5", "5月", "月", "8", "8日", "日"]
    assert "3시" in terms("3시에")


@pytest.mark.parametrize(
    ("told", "query", "memory"),
    [
        ("es", "¿Dónde trabajan mis hermanos?", "Mi hermano trabaja en el puerto de Vigo."),
        ("de", "Wo arbeitet meine Schwester?", "Meine Schwestern arbeiten in der Klinik."),
        ("fr", "Où travaillait mon frère ?", "Mes frères travaillent et mon frère travaille."),
        ("it", "Dove lavorano i miei fratelli?", "Mio fratello lavora in una banca di Roma."),
        ("pt", "Onde trabalham os meus irmãos?", "O meu irmão trabalha no porto."),
        ("nl", "Waar werken mijn broers?", "Mijn broer werkte in een haven van de stad."),
    ],
)
def test_a_language_that_can_be_told_is_stemmed_too(told: str, query: str, memory: str) -> None:
    """Inflected words meet in their own language, which is told by its stop words."""
    wanted = query_terms(query)
    assert len({term for term in terms(memory) if term.startswith(f"{told}:")} & set(wanted)) == 2
    assert sum(":" in term for term in wanted) == 2  # without stop words


def test_english_is_stemmed_once() -> None:
    """English has no second stems, even with a word that is a stop word elsewhere."""
    assert not any(":" in term for term in terms("Die hard is on at the cinema, la la la"))


def test_one_word_is_enough_in_any_language() -> None:
    """A query of one word tells no language, and finds it in a text that does."""
    assert finds("perro", "Mi perro es muy grande y no come nada.")
    assert finds("Hunde", "Ich habe einen Hund und eine Katze.")
    assert query_terms("perro") == ["perro"]


@pytest.mark.parametrize(
    ("query", "memory"),
    [
        ("сестра", "Мои сёстры живут в Москве"),
        ("ещё", "еще раз"),
        ("المدرسة", "أحمد يعمل في مدرسة"),
        ("محمد", "مُحَمَّد"),
        ("शहर", "शहरों में"),
        ("δουλειά", "η δουλεια μου"),
        ("שלום", "שָׁלוֹם"),
        ("நகரம்", "நகரம் பெரியது"),
    ],
)
def test_other_scripts(query: str, memory: str) -> None:
    """Words in other scripts are stemmed where a stemmer is known, without points and accents."""
    assert finds(query, memory)


# --- queries ---------------------------------------------------------------------------------------


def test_stop_words_are_left_out_of_queries() -> None:
    """A query has no stop words of its language, and each term once."""
    assert query_terms("What is the name of my cat's cat?") == ["name", "cat"]
    assert query_terms("Wie heißt die Katze von meiner Mutter und der Hund?")[0] != "wie"
    assert "die" in query_terms("Did he die?")
    assert "的" not in query_terms("我的猫叫什么名字？")


@pytest.mark.parametrize("query", ["who are you", "The Who", "to be or not to be", "的"])
def test_a_query_of_stop_words_keeps_them(query: str) -> None:
    """Where nothing else is left, stop words are searched."""
    assert query_terms(query) == list(dict.fromkeys(terms(query)))


def test_a_query_has_so_many_terms_at_most() -> None:
    """The first `MAX_QUERY_TERMS` terms of a long query count."""
    query = " ".join(f"x{number}" for number in range(100_000))
    assert query_terms(query) == [f"x{number}" for number in range(MAX_QUERY_TERMS)]


@pytest.mark.parametrize("query", ["", " \n", "???", "\ud800", "\0", "\u200d"])
def test_nothing_has_no_terms(query: str) -> None:
    """Without a word there is no term."""
    assert query_terms(query) == terms(query) == []


# --- dates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "in May 2023",
        "on 8 May",
        "May 8th",
        "2023-05-08",
        "¿Qué pasó en mayo?",
        "am 8. Mai",
        "8 мая",
        "5月8日",
        "5월에",
        "2023年",
        "MAY",
    ],
)
def test_a_date_is_found_by_its_words(query: str) -> None:
    """A date is found by day, month and year, the month in several languages and in figures."""
    when = date_terms(datetime(2023, 5, 8, 12, tzinfo=UTC))
    assert when == ["8", "may", "2023"]
    hit = set(query_terms(query)) & set(when)
    assert len(hit) >= (2 if "8" in query else 1)
    if "5" in query and "-" not in query:
        assert "may" in hit


def test_other_months_are_not_found() -> None:
    """A month is not another one, and a number that is no month none."""
    when = date_terms(datetime(2023, 12, 31, tzinfo=UTC))
    assert when == ["31", "decemb", "2023"]
    assert not set(query_terms("5月, mayo, 2021-13, 13月")) & set(when)
    assert set(query_terms("Dez 12月 dec")) & set(when) == {"decemb"}


def test_questions_are_told_by_their_mark() -> None:
    """A question mark of any script makes a question."""
    assert has_question("Really? Yes.")
    assert has_question("本当？")
    assert has_question("أين؟")
    assert not has_question("Yes.")


def test_words_are_as_written() -> None:
    """`words` gives words with their case, joined ones apart and without `'s`."""
    assert words("Anna-Lena's cat, 花子さん!") == ["Anna", "Lena", "cat", "花子さん"]


# --- no text is too much ---------------------------------------------------------------------------


@many
@given(texts)
def test_no_text_raises(text: str) -> None:
    """Any text has terms, short ones without spaces; the same text has the same ones."""
    found = terms(text)
    assert found == terms(text)
    assert all(0 < len(term) <= MAX_TERM_CHARS for term in found)
    assert not any(char.isspace() for term in found for char in term)
    wanted = query_terms(text)
    assert len(wanted) == len(set(wanted)) <= MAX_QUERY_TERMS
    assert bool(wanted) == bool(found)


@many
@given(texts, texts)
def test_a_text_is_found_in_a_longer_one(text: str, other: str) -> None:
    """What a text is found by, whatever the language, it is found by in a longer text too."""
    plain = [term for term in terms(text) if ":" not in term]
    both = terms(f"{text}\n{other}")
    assert all(term in both for term in plain)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a-",
        "日",
        "é",
        "한",
        "ก็",
        "a\u0301\u0323",
        "\u0301\u0323",
        "aB",
        "1.",
        "\ud800",
        "n't",
        "😀",
    ],
)
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    """Long words, crowds of marks and endless joints take no more time for each character."""
    text = piece * (200_000 // len(piece))
    assert all(len(term) <= MAX_TERM_CHARS for term in terms(text))
    query_terms(text)


def test_a_long_word_is_cut() -> None:
    """Of a word longer than a term may be, the beginning counts."""
    assert terms("x" * 1_000_000) == ["x" * MAX_TERM_CHARS]
    assert finds("y" * 100, "y" * 200)


def test_surrogates_and_nul_part_words() -> None:
    """A lone surrogate and NUL are no letters, and take nothing with them."""
    assert terms("cat\ud83d\0dog") == ["cat", "dog"]


def test_threads_get_the_right_stems() -> None:
    """Stemmers hold the word they are at work on, so each thread has its own."""
    vocabulary = [
        f"{stem}{ending}"
        for stem in map("w{}ork".format, "abcdefgh" * 40)
        for ending in ("s", "ing", "ed", "er", "ation", "ational", "fulness", "ization")
    ]
    expected = [languages.stem.__wrapped__(word) for word in vocabulary]
    wrong: list[str] = []

    def work() -> None:
        for word, stem in zip(vocabulary * 3, expected * 3, strict=True):
            if languages.stem.__wrapped__(word) != stem:
                wrong.append(word)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_terms_have_a_version() -> None:
    """These are the terms of this version: whoever changes them raises it."""
    sample = "Caroline's 3 cats don't like v1.5 of multi-agent café 猫 한국어를 😀 8th ещё"
    expected = "carolin 3 cat dont like v1.5 1.5 of multi agent multiag cafe 猫"
    expected += " 한국어 한국어를 한국 국어 어를 😀 8 ещ"
    assert (TERMS_VERSION, terms(sample)) == (1, expected.split())
