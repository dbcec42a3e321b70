"""Messages made of texts and other parts: `system`, `user`, `assistant` and `tool_result`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.errors import PromptError
from tenure.messages import (
    AssistantMessage,
    AssistantPart,
    ResultPart,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    UserPart,
)

P = TypeVar("P")


def system(text: str, *, clock: Clock = SYSTEM_CLOCK) -> SystemMessage:
    """A system message of one text. `clock` gives its id and time."""
    return SystemMessage(parts=(Text(text=text),), id=clock.new_id(), created_at=clock.now())


def user(*content: str | UserPart, clock: Clock = SYSTEM_CLOCK) -> UserMessage:
    """A user message of texts and media, at least one, in this order. `clock` gives its id and time."""
    return UserMessage(parts=_parts("user", content), id=clock.new_id(), created_at=clock.now())


def assistant(*content: str | AssistantPart, clock: Clock = SYSTEM_CLOCK) -> AssistantMessage:
    """An assistant message of texts, reasoning, media and tool calls; otherwise the same."""
    parts = _parts("assistant", content)
    return AssistantMessage(parts=parts, id=clock.new_id(), created_at=clock.now())


def tool_result(
    call: ToolCall | str | None,
    content: str | Iterable[str | ResultPart] = "",
    *,
    name: str | None = None,
    is_error: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> ToolMessage:
    """A tool message with the result of one call.

    Args:
        call: The call that this answers, or its id, or None for a call without id.
        content: What the tool returned: a text, or texts and media.
        name: The tool's name; needed unless `call` is a `ToolCall`.
        is_error: Whether the tool failed.
        clock: Gives the message's id and time.
    """
    call_id = call.id if isinstance(call, ToolCall) else call
    name = call.name if isinstance(call, ToolCall) and not name else name
    if not name:
        raise PromptError(
            f"The tool result for call {call_id!r} needs the tool's name; pass name=."
        )
    parts = _texts([content] if isinstance(content, str) else content)
    result = ToolResult(call_id=call_id, name=name, parts=parts, is_error=is_error)
    return ToolMessage(parts=(result,), id=clock.new_id(), created_at=clock.now())


def _parts(role: str, content: tuple[str | P, ...]) -> tuple[P | Text, ...]:
    if not content:
        raise PromptError(f"This {role} message is empty; give it a text or another part.")
    return _texts(content)


def _texts(content: Iterable[str | P]) -> tuple[P | Text, ...]:
    return tuple(Text(text=item) if isinstance(item, str) else item for item in content)
