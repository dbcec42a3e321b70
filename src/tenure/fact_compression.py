"""Compression to facts: what a history says about some concepts, in its place."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, cast

from tenure.compression import (
    HistoryCompression,
    NoCompression,
    checked_strategy,
    composed,
    finished,
    material,
)
from tenure.errors import InvalidValueError, StructuredOutputError
from tenure.messages import Message
from tenure.structured import OutputSchema
from tenure.summaries import SUMMARISER, Summarizer, transcript

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Concept:
    """What facts are wanted about.

    Args:
        keyword: A short name, such as `"diet"`.
        description: What to look for, in a sentence.
        fact_type: Whether one fact is wanted, or as many as there are.
    """

    keyword: str
    description: str
    fact_type: Literal["single", "multiple"] = "multiple"


@dataclass(frozen=True)
class RetrieveFactsFromHistory(HistoryCompression):
    """Facts about some concepts in the place of the history; one request for each concept.

    Args:
        concepts: What facts are wanted about.
        fallback: What to do when there is no fact at all.
    """

    concepts: Sequence[Concept]
    fallback: HistoryCompression = NoCompression()  # noqa: RUF009 # has no state

    def __post_init__(self) -> None:
        given = cast("object", self.concepts)
        items = cast("Iterable[object]", given) if isinstance(given, Iterable) else (None,)
        if not all(isinstance(item, Concept) for item in items):
            raise InvalidValueError(
                f"{given!r} are no concepts; give a list of Concept(keyword=..., description=...)."
            )
        checked_strategy(self.fallback)

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, and one message with the facts.

        A concept whose answer cannot be read is skipped, and logged; other errors are raised.
        """
        if not material(messages):
            return messages
        done = finished(messages)
        found = await self.facts(done, summarizer)
        if not any(found.values()):
            return await self.fallback.compress(messages, summarizer)
        results = sum(len(message.tool_results) for message in done)
        summary = summarizer.summary(_facts_text(found, results), done)
        return composed(messages, [summary], memory=summarizer.memory)

    async def facts(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> dict[Concept, list[str]]:
        """Return the facts that messages hold about each concept, in one request for each."""
        return {c: await self._facts(c, messages, summarizer) for c in self.concepts}

    async def _facts(
        self, concept: Concept, messages: Sequence[Message], summarizer: Summarizer
    ) -> list[str]:
        count = "the one most important fact" if concept.fact_type == "single" else "every fact"
        task = (
            f"{transcript(messages)}\n\nFrom the conversation above, write down {count} about "
            f"{concept.keyword!r}: {concept.description}\nEach fact is one sentence that can be "
            "understood alone. Where there is none, answer with an empty list."
        )
        try:
            answer = await summarizer.ask_for(SUMMARISER, task, OutputSchema(list[str]))
        except StructuredOutputError:
            _log.warning("The facts about %r could not be read, and are left out.", concept.keyword)
            return []
        facts = [*dict.fromkeys(fact.strip() for fact in answer if fact.strip())]
        return facts[:1] if concept.fact_type == "single" else facts


def _facts_text(found: dict[Concept, list[str]], results: int) -> str:
    # Escaped, so that what somebody once said cannot close the block and pass for instructions.
    lines = [
        f'<fact about="{escape(concept.keyword)}">{escape(fact, quote=False)}</fact>'
        for concept, facts in found.items()
        for fact in facts
    ]
    return (
        "Here is what is known from the conversation so far. It replaces the conversation itself, in which "
        f"there were {results} tool results; the state of work that was under way may be missing.\n"
        "<facts>\n" + "\n".join(lines) + "\n</facts>"
    )
