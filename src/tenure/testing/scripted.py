"""A model that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeAlias

from tenure.errors import InvalidValueError, UsageError
from tenure.messages import AssistantMessage, Reasoning, Text, ToolCall
from tenure.models import (
    ModelProfile,
    ModelRequest,
    PartEnd,
    ReasoningDelta,
    StreamEnd,
    StreamFrame,
    TextDelta,
    ToolCallDelta,
)
from tenure.saying import assistant

_Said: TypeAlias = str | AssistantMessage | BaseException
Reply: TypeAlias = _Said | Callable[[ModelRequest], _Said | Awaitable[_Said]]
"""A text, a message, an exception to raise, or a function of the request, sync or async, of these."""


class ScriptedModel:
    """Gives one reply after the other.

    Attributes:
        requests: Every `ModelRequest` so far, in order, also those that raised.
    """

    def __init__(self, replies: Iterable[Reply], *, profile: ModelProfile | None = None) -> None:
        """Take the replies.

        Args:
            replies: One for each request, in order. A text streams word by word.
            profile: What the model says it can do.
        """
        self.requests: list[ModelRequest] = []
        self.profile = profile if profile is not None else ModelProfile(has_native_schema=True)
        self._replies = list(replies)

    async def respond(self, request: ModelRequest) -> AssistantMessage:
        """Give the next reply, or raise it.

        Raises:
            UsageError: There is none left.
        """
        self.requests.append(request)
        index = len(self.requests) - 1
        if index >= len(self._replies):
            raise UsageError(
                f"ScriptedModel was given {len(self._replies)} replies and is asked for one more; "
                "add it to the list."
            )
        reply = self._replies[index]
        if not isinstance(reply, (str, AssistantMessage, BaseException)):
            said = reply(request)
            reply = await said if inspect.isawaitable(said) else said
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, str):
            return assistant(reply)
        if not isinstance(reply, AssistantMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"ScriptedModel's reply {index + 1} is of type {type(reply).__name__}; give texts, "
                "assistant messages, exceptions, or functions that return one of these."
            )
        return reply

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamFrame]:
        """Give the next reply in frames: texts and arguments in pieces that join to the whole."""
        message = await self.respond(request)
        for index, part in enumerate(message.parts):
            match part:
                case Text():
                    for piece in _pieces(part.text):
                        yield TextDelta(index=index, text=piece)
                case Reasoning():
                    for piece in _pieces(part.text):
                        yield ReasoningDelta(index=index, text=piece)
                case ToolCall():
                    yield ToolCallDelta(index=index, id=part.id, name=part.name)
                    for piece in _pieces(part.args):
                        yield ToolCallDelta(index=index, args=piece)
                case _:
                    pass
            yield PartEnd(index=index, part=part)
        yield StreamEnd(message=message)


def _pieces(text: str) -> list[str]:
    """Cut behind each space."""
    words = text.split(" ")
    return [f"{word} " for word in words[:-1]] + [word for word in words[-1:] if word]
