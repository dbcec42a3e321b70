"""The valid view: what of a conversation a model is shown.

`valid_view` is the one pure function between a prompt and a model. What it returns always holds:

- each tool result directly follows the turn whose calls it answers, and every call has one id;
- no call is unanswered, except those of the last turn, which are being executed;
- a result without its call, or a second result of one call, is left out;
- the agent's own system prompt is there exactly once, and first; other system messages stay in place.

It never edits what is stored, and applying it twice is applying it once. `window` is the other cut that
may be made before it: the last n messages, never a result without its call.

A result belongs to the call of its id; without an id, to the oldest unanswered call of its tool that has
no id either. Ids and anonymous names are separate namespaces, one call takes one result, and a result
never belongs to a call that comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TypeAlias

from tenure.errors import InvalidValueError
from tenure.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolPart,
    ToolResult,
)

Place: TypeAlias = tuple[int, int]
"""Where a part is: the index of its message, and its own index in that message."""

UNANSWERED = "The tool call was interrupted: no result was recorded. Call the tool again if needed."
"""What a model reads in place of the result of a call that never got one."""


def valid_view(
    messages: Sequence[Message], *, system_prompt: SystemMessage | None = None
) -> list[Message]:
    """Return the messages that a model may be sent, in order.

    Args:
        messages: A conversation, in any state.
        system_prompt: The agent's own. It comes first, whether or not `messages` has it; further
            copies of it (same id, or same parts) are left out. When `messages` has one of its
            id, that one is used: code has rewritten it.
    """
    if system_prompt is not None:
        messages = _system_first(messages, system_prompt)
    messages = with_call_ids(messages)
    answers = {call: result for result, call in paired_results(messages).items()}
    moved = set(answers.values())
    last_turn = _last_turn(messages)
    view: list[Message] = []
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            view.append(message)
            view.extend(_results_of(messages, index, answers, open_allowed=index == last_turn))
        elif isinstance(message, ToolMessage):
            rest = tuple(part for part in message.parts if not isinstance(part, ToolResult))
            # Words that came with results stay where those results went.
            if rest and not any(place[0] == index for place in moved):
                view.append(_with_parts(message, rest))
        else:
            view.append(message)
    return view


def window(messages: Sequence[Message], size: int) -> list[Message]:
    """Return the last `size` messages, without results whose call is not among them.

    The result may hold fewer than `size`: a tool message that loses all its results goes, one that
    holds other parts as well keeps those. At least as large as the conversation, it changes nothing.

    Raises:
        InvalidValueError: `size` is negative.
    """
    if size < 0:
        raise InvalidValueError(f"A window of {size} messages cannot be; give 0 or more.")
    if size >= len(messages):
        return list(messages)
    start = len(messages) - size
    calls = paired_results(messages)
    cut: list[Message] = []
    for index, message in enumerate(messages[start:], start):
        if not isinstance(message, ToolMessage):
            cut.append(message)
            continue
        kept = tuple(
            part
            for position, part in enumerate(message.parts)
            if not isinstance(part, ToolResult) or calls.get((index, position), (-1, 0))[0] >= start
        )
        if kept:
            cut.append(_with_parts(message, kept))
    return cut


def paired_results(messages: Sequence[Message]) -> dict[Place, Place]:
    """Return for each result that answers a call the place of that call, by the place of the result."""
    open_by_id: dict[str, Place] = {}
    open_by_name: dict[str, list[Place]] = {}
    pairs: dict[Place, Place] = {}
    for index, message in enumerate(messages):
        for position, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                if part.id is None:
                    open_by_name.setdefault(part.name, []).append((index, position))
                else:
                    open_by_id[part.id] = (index, position)
            elif isinstance(part, ToolResult):
                call = (
                    open_by_id.pop(part.call_id, None)
                    if part.call_id is not None
                    else _first(open_by_name.get(part.name))
                )
                if call is not None:
                    pairs[index, position] = call
    return pairs


def with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with an id on every call that has none, and on its result.

    The id depends on the id of the call's message and the place of the call in it and on nothing
    else, so that every load of a conversation shows a model the same ids.
    """
    ids = {
        (index, position): f"call_{_digest(f'{message.id}/{position}')}"
        for index, message in enumerate(messages)
        for position, part in enumerate(message.parts)
        if isinstance(part, ToolCall) and part.id is None
    }
    if not ids:
        return list(messages)
    pairs = paired_results(messages)
    ids |= {result: ids[call] for result, call in pairs.items() if call in ids}
    named = list(messages)
    for index in {place[0] for place in ids}:
        message = messages[index]
        parts = tuple(_with_id(part, ids.get((index, n))) for n, part in enumerate(message.parts))
        named[index] = replace(message, parts=parts)
    return named


def _with_id(part: object, call_id: str | None) -> object:
    if call_id is None:
        return part
    if isinstance(part, ToolCall):
        return replace(part, id=call_id)
    assert isinstance(part, ToolResult)
    return replace(part, call_id=call_id)


def _system_first(messages: Sequence[Message], own: SystemMessage) -> list[Message]:
    current = next((m for m in messages if isinstance(m, SystemMessage) and m.id == own.id), own)
    others = [
        m
        for m in messages
        if not (isinstance(m, SystemMessage) and (m.id == own.id or m.parts == own.parts))
    ]
    return [current, *others]


def _last_turn(messages: Sequence[Message]) -> int | None:
    """The index of the turn whose calls are being executed: nothing but results follows it."""
    for index in range(len(messages) - 1, -1, -1):
        if not isinstance(messages[index], ToolMessage):
            return index if isinstance(messages[index], AssistantMessage) else None
    return None


def _results_of(
    messages: Sequence[Message],
    turn: int,
    answers: Mapping[Place, Place],
    *,
    open_allowed: bool,
) -> list[Message]:
    """The tool messages that answer one turn's calls, and a made one for what is unanswered."""
    places: dict[int, list[int]] = {}  # index of a tool message -> positions of its results
    unanswered: list[ToolCall] = []
    for position, part in enumerate(messages[turn].parts):
        if isinstance(part, ToolCall):
            place = answers.get((turn, position))
            if place is not None:
                places.setdefault(place[0], []).append(place[1])
            elif not open_allowed:
                unanswered.append(part)
    results: list[Message] = []
    for index in sorted(places):
        message = messages[index]
        assert isinstance(message, ToolMessage)
        mine = set(places[index])
        first_turn = min(t for (t, _), (i, _) in answers.items() if i == index) == turn
        parts = tuple(
            part
            for position, part in enumerate(message.parts)
            if position in mine or (first_turn and not isinstance(part, ToolResult))
        )
        results.append(_with_parts(message, parts))
    if unanswered:
        results.append(_interrupted(messages[turn], unanswered))
    return results


def _interrupted(turn: Message, calls: Sequence[ToolCall]) -> ToolMessage:
    text = Text(text=UNANSWERED)
    return ToolMessage(
        id=f"unanswered-{_digest(turn.id)}",
        created_at=turn.created_at,
        parts=tuple(
            ToolResult(call_id=call.id, name=call.name, parts=(text,), is_error=True)
            for call in calls
        ),
    )


def _with_parts(message: ToolMessage, parts: tuple[ToolPart, ...]) -> ToolMessage:
    return message if parts == message.parts else replace(message, parts=parts)


def _first(places: list[Place] | None) -> Place | None:
    return places.pop(0) if places else None


def _digest(text: str) -> str:
    """24 hexadecimal digits: short enough for every provider's limit on call ids (40)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
