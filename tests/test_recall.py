"""How well memories are found that say it in other words, in five languages, with the local embedder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tenure import InMemoryStore, Memories

LANGUAGES = ("en", "es", "ja", "ko", "zh")

# What says nothing of a question's topic: words by their first four letters, and endings.
_EMPTY = {"what", "when", "whic", "with", "does", "from", "para", "como", "cuán", "dónd"}
_ENDINGS = {
    "어를",
    "에서",
    "까지",
    "으로",
    "하고",
    "에게",
    "는다",
    "한다",
    "누구",
    "이야",
    "누가",
    "언제",
}


@pytest.fixture(params=LANGUAGES)
def data(request: pytest.FixtureRequest) -> dict[str, Any]:
    path = Path(__file__).parent / "recall" / f"{request.param}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def content_words(text: str) -> set[str]:
    """The words of a text by their first four letters, and its pairs of Han, Katakana and Hangul."""
    words = {word[:4] for word in re.findall(r"[^\W\d_]+", text.casefold()) if word.isascii() or
             not re.search(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]", word)}  # fmt: skip
    runs = re.findall(r"[\u30a0-\u30ff]+|[\u4e00-\u9fff]+|[\uac00-\ud7a3]+", text)
    pairs = {run[i : i + 2] for run in runs for i in range(len(run) - 1)}
    return {word for word in words if len(word) == 4} - _EMPTY | pairs - _ENDINGS


def test_the_data_is_what_it_says(data: dict[str, Any]) -> None:
    """300 memories besides the answers, no two alike; half of the questions share no word."""
    memories, questions = data["memories"], data["questions"]
    assert len(set(memories)) == len(memories) >= 330
    assert len(questions) == 30
    assert {each["answer"] for each in questions} <= set(memories)
    apart = [each for each in questions if each["shares_no_word"]]
    assert len(apart) >= 15
    for each in apart:
        shared = content_words(each["question"]) & content_words(each["answer"])
        assert not shared, (each, shared)


@pytest.mark.anyio
async def test_other_words_find_the_answer(data: dict[str, Any]) -> None:
    """Of 30 questions at least 27 have their answer among the first three of 330 memories."""
    memories = Memories.open(InMemoryStore(), agent_id="a", embedder="local")
    await memories.add_many(data["memories"])
    await memories.reembed()  # waits until all have their vector
    missed: list[str] = []
    for each in data["questions"]:
        found = await memories.search(each["question"], limit=3)
        if each["answer"] not in [memory.content for memory in found]:
            missed.append(each["question"])
    await memories.close()
    assert len(missed) <= 3, missed
