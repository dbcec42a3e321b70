"""What is remembered of a run: its turn as it was said, or what a function makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from tenure.errors import InvalidValueError
from tenure.fact_compression import Concept, RetrieveFactsFromHistory
from tenure.messages import AssistantMessage, Message, ToolResult, UserMessage
from tenure.recalled import BEGIN
from tenure.signatures import is_async

if TYPE_CHECKING:
    from tenure.run import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a run that succeeded has added to its conversation.

    Args:
        ctx: The run; its model can be asked in a `ctx.llm.read_session()`.
        messages: Its messages as they are stored, tool calls and results included, summaries not.
    """

    ctx: RunContext
    messages: tuple[Message, ...]

    @property
    def user_messages(self) -> list[UserMessage]:
        """What the user said; messages without text left out."""
        return [m for m in self.messages if isinstance(m, UserMessage) and m.text.strip()]

    @property
    def reply(self) -> AssistantMessage | None:
        """The last message of the model that says something."""
        said = (m for m in reversed(self.messages) if isinstance(m, AssistantMessage))
        return next((m for m in said if m.text.strip()), None)


Ingest: TypeAlias = Literal["turns", "user"] | Callable[[Turn], Awaitable[Iterable[str]]] | None
"""What is remembered; see `LongTermMemory`."""


def checked_ingest(ingest: object) -> None:
    """Refuse what is no `Ingest`.

    Raises:
        InvalidValueError: It is none, such as a plain function, or `facts` that was not called.
    """
    is_function = callable(ingest) and is_async(ingest)
    if ingest not in ("turns", "user", None) and not is_function:
        raise InvalidValueError(
            f"ingest={ingest!r} must be 'turns', 'user', None, facts([...]), or an async function of a "
            "turn that returns texts."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One text to remember.

    Args:
        text: The text.
        metadata: What is noted with it.
        messages: The messages that it comes from: the one that says it, or the whole turn.
    """

    text: str
    metadata: dict[str, str]
    messages: tuple[Message, ...]


async def texts_of(turn: Turn, ingest: Ingest) -> list[Ingested]:
    """Return what is to be remembered of a turn.

    Raises:
        InvalidValueError: A function returned something else than texts.
    """
    if ingest is None:
        return []
    if callable(ingest):
        texts = await _texts_from(ingest, turn)
        return [
            Ingested(text=text, metadata={"type": "fact"}, messages=turn.messages)
            for text in texts
            if text.strip()
        ]
    said: Sequence[Message] = turn.user_messages
    if ingest == "turns" and turn.reply is not None:
        said = [*said, turn.reply]
    return [
        Ingested(text=m.text, metadata={"type": "conversation", "role": m.role}, messages=(m,))
        for m in said
    ]


async def _texts_from(ingest: Callable[[Turn], Awaitable[Iterable[str]]], turn: Turn) -> list[str]:
    given = cast("object", await ingest(turn))
    is_many = isinstance(given, Iterable) and not isinstance(given, str)
    texts = [*cast("Iterable[object]", given)] if is_many else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidValueError(f"ingest= returned {given!r}; return a list of texts.")
    return cast("list[str]", texts)


def facts(
    concepts: Sequence[Concept], *, retrieval_model: object = None
) -> Callable[[Turn], Awaitable[list[str]]]:
    """Return an `ingest` that has a model write down the facts about some concepts in each turn.

    It asks once for each concept, and does not show what the `recall` tool gave: that is known already.
    What cannot be read is left out, and logged; an error of the model's keeps the run from being stored.

    Args:
        concepts: What facts are wanted about.
        retrieval_model: Who is asked; the run's model by default.
    """
    strategy = RetrieveFactsFromHistory(concepts)

    async def facts_of(turn: Turn) -> list[str]:
        async with turn.ctx.llm.read_session() as session:
            summarizer = session._summarizer(retrieval_model)  # pyright: ignore[reportPrivateUsage] # as compression
            found = await strategy.facts([*map(_without_recalled, turn.messages)], summarizer)
        return [fact for some in found.values() for fact in some]

    return facts_of


def _without_recalled(message: Message) -> Message:
    """A message without the blocks of memories that are results of tools in it."""
    parts = [
        replace(part, parts=())
        if isinstance(part, ToolResult) and part.text.startswith(BEGIN)
        else part
        for part in message.parts
    ]
    return replace(message, parts=tuple(parts)) if parts != [*message.parts] else message
