"""The valid view: what of a conversation a model is shown.

`valid_view` is the one pure function between a prompt and a model. What it returns always holds:

- each tool result directly follows the turn whose calls it answers;
- every call has an id that no other call has, and its result has the same;
- no call is unanswered, except those of the last turn, which are being executed;
- a result without its call, or a second result of one call, is left out;
- reasoning is followed by what it led to;
- the agent's own system prompt is there exactly once, and first; other system messages stay in place.

It never edits what is stored, and applying it twice is applying it once. What of a long conversation it is
given is the business of `windows.py`; that it fits a budget, too. `with_tools_as_text` puts calls of tools
that are not offered into words.

A result belongs to the call of its id, to the latest turn's when several turns use that id; without an
id, to the oldest unanswered call of its tool that has no id either. Ids and anonymous names are separate
namespaces, one call takes one result, and a result never belongs to a call that comes after it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import blake2b
from typing import TypeAlias

from tenure.messages import (
    AssistantMessage,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
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
    calls = paired_results(messages)
    messages = _with_unique_ids(messages, calls)
    answered = set(calls.values())
    last_turn = _last_turn(messages)
    results, words = _dealt(calls)
    view: list[Message] = []
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            if not (spoken := _without_loose_reasoning(message)).parts:
                continue
            view.append(spoken)
            for place, positions in results.get(index, {}).items():
                view.append(
                    with_only_results(messages[place], positions, words=words[place] == index)
                )
            if index != last_turn:
                view.extend(_interrupted(message, index, answered))
        elif isinstance(message, ToolMessage):
            # Words that came with results go where the first of those results went.
            if index not in words and len(message.tool_results) < len(message.parts):
                view.append(with_only_results(message, frozenset()))
        else:
            view.append(message)
    return view


def with_tools_as_text(
    messages: Sequence[Message], *, offered: AbstractSet[str] = frozenset()
) -> list[Message]:
    """Return the messages with the calls and results of tools that are not `offered` as plain text.

    Providers refuse calls of tools that a request does not declare. A tool message without any result
    left becomes the user's. A turn that loses all its calls loses its reasoning and its providers'
    details with them, because providers refuse those without what they belong to.
    """
    return [_as_text(message, offered) for message in messages]


def _as_text(message: Message, offered: AbstractSet[str]) -> Message:
    parts = [*message.parts]
    for position, part in enumerate(message.parts):
        if isinstance(part, ToolCall) and part.name not in offered:
            parts[position] = _described("call", part.name, part.id, part.args)
        elif isinstance(part, ToolResult) and part.name not in offered:
            kind = "error" if part.is_error else "result"
            parts[position] = _described(kind, part.name, part.call_id, part.text)
            parts.extend(piece for piece in part.parts if isinstance(piece, Media))
    if parts == [*message.parts]:
        return message
    if isinstance(message, AssistantMessage):
        if not any(isinstance(part, ToolCall) for part in parts):
            spoken = [p for p in parts if not isinstance(p, Reasoning)]
            parts = [replace(p, provider={}) if isinstance(p, Text) else p for p in spoken]
            return replace(message, parts=tuple(parts), provider={})
    elif not any(isinstance(part, ToolResult) for part in parts):
        said = tuple(part for part in parts if isinstance(part, Text | Media | Opaque))
        return UserMessage(parts=said, id=message.id, created_at=message.created_at)
    return replace(message, parts=tuple(parts))


def _described(kind: str, name: str, call_id: str | None, text: str) -> Text:
    """A call or a result in words: one line that says what it is, and then what it holds."""
    of = f" (id {call_id})" if call_id else ""
    return Text(text=f"[tool {kind}: {name}{of}]\n{text}")


class Pairing:
    """Which call each result belongs to. It is told of both in the order of the conversation."""

    def __init__(self) -> None:
        self._by_id: dict[str, deque[Place]] = {}  # the open calls of the latest turn with that id
        self._turns: dict[str, int] = {}  # which turn that is
        self._by_name: dict[str, deque[Place]] = {}  # the open calls without id

    def add(self, place: Place, call: ToolCall) -> None:
        """A call was made."""
        if call.id is None:
            self._by_name.setdefault(call.name, deque()).append(place)
        elif self._turns.get(call.id) == place[0]:
            self._by_id[call.id].append(place)
        else:
            self._by_id[call.id] = deque([place])
            self._turns[call.id] = place[0]

    def take(self, result: ToolResult) -> Place | None:
        """A result came: return the call that it answers and that is unanswered so far, if any."""
        if result.call_id is None:
            calls = self._by_name.get(result.name)
        else:
            calls = self._by_id.get(result.call_id)
        return calls.popleft() if calls else None

    def knows(self, call_id: str) -> bool:
        """Whether a call of that id was made, answered or not."""
        return call_id in self._turns


def paired_results(messages: Sequence[Message]) -> dict[Place, Place]:
    """Return for each result that answers a call the place of that call, by the place of the result."""
    pairing = Pairing()
    pairs: dict[Place, Place] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            for position, part in enumerate(message.parts):
                if isinstance(part, ToolCall):
                    pairing.add((index, position), part)
        elif isinstance(message, ToolMessage):
            for position, part in enumerate(message.parts):
                if isinstance(part, ToolResult) and (call := pairing.take(part)) is not None:
                    pairs[index, position] = call
    return pairs


def with_only_results(
    message: Message, positions: AbstractSet[int], *, words: bool = True
) -> ToolMessage:
    """Return a tool message with the results at these positions, and its other parts if `words`."""
    assert isinstance(message, ToolMessage)
    parts = tuple(
        part
        for position, part in enumerate(message.parts)
        if (words if not isinstance(part, ToolResult) else position in positions)
    )
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with an id of its own on every call, and the same on its result.

    Ids stay as they are, unless an earlier call has the same. A made id depends on the id of the
    call's message and the place of the call in it, so that every load of a conversation shows a
    model the same ids.
    """
    return _with_unique_ids(messages, paired_results(messages))


def _with_unique_ids(messages: Sequence[Message], calls: Mapping[Place, Place]) -> list[Message]:
    taken: set[str] = set()
    tries = Counter[str]()
    made: dict[Place, str] = {}
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage):
            continue
        for position, part in enumerate(message.parts):
            if not isinstance(part, ToolCall):
                continue
            call_id, seed = part.id, f"{message.id}/{position}"
            while call_id is None or call_id in taken:
                again = f"/{tries[seed]}" if tries[seed] else ""  # the message is here twice
                call_id = made[index, position] = f"call_{_digest(seed + again)}"
                tries[seed] += 1
            taken.add(call_id)
    named = list(messages)
    if not made:
        return named
    made |= {result: made[call] for result, call in calls.items() if call in made}
    for index in {place[0] for place in made}:
        message = messages[index]
        parts = tuple(_with_id(part, made.get((index, n))) for n, part in enumerate(message.parts))
        named[index] = replace(message, parts=parts)
    return named


def _with_id(part: Part, call_id: str | None) -> Part:
    if call_id is None:
        return part
    if isinstance(part, ToolCall):
        return replace(part, id=call_id)
    assert isinstance(part, ToolResult)
    return replace(part, call_id=call_id)


def _system_first(messages: Sequence[Message], own: SystemMessage) -> list[Message]:
    current = next((m for m in messages if isinstance(m, SystemMessage) and m.id == own.id), own)
    copies = (own.parts, current.parts)
    others = [
        m
        for m in messages
        if not (isinstance(m, SystemMessage) and (m.id == own.id or m.parts in copies))
    ]
    return [current, *others]


def _without_loose_reasoning(turn: AssistantMessage) -> AssistantMessage:
    """The turn without reasoning at its end: providers refuse it without what it led to."""
    if not turn.parts or not isinstance(turn.parts[-1], Reasoning):
        return turn
    end = len(turn.parts)
    while end and isinstance(turn.parts[end - 1], Reasoning):
        end -= 1
    return replace(turn, parts=turn.parts[:end])


def _last_turn(messages: Sequence[Message]) -> int | None:
    """The index of the turn whose calls are being executed: nothing but results follows it."""
    for index in range(len(messages) - 1, -1, -1):
        if not isinstance(messages[index], ToolMessage):
            return index if isinstance(messages[index], AssistantMessage) else None
    return None


def _dealt(calls: Mapping[Place, Place]) -> tuple[dict[int, dict[int, set[int]]], dict[int, int]]:
    """Sort results by the turn they answer.

    Returns:
        By turn, the tool messages with answers to it, in order, with the positions of those; and by
        tool message the first turn that it answers.
    """
    results: dict[int, dict[int, set[int]]] = {}
    first: dict[int, int] = {}
    for (index, position), (turn, _) in calls.items():
        results.setdefault(turn, {}).setdefault(index, set()).add(position)
        first[index] = min(turn, first.get(index, turn))
    return results, first


def _interrupted(
    turn: AssistantMessage, index: int, answered: AbstractSet[Place]
) -> list[ToolMessage]:
    """A made result for each call of a turn that has none, in one message, if there are such calls."""
    left = [
        part
        for position, part in enumerate(turn.parts)
        if isinstance(part, ToolCall) and (index, position) not in answered
    ]
    if not left:
        return []
    text = Text(text=UNANSWERED)
    results = tuple(
        ToolResult(call_id=call.id, name=call.name, parts=(text,), is_error=True) for call in left
    )
    made_id = f"unanswered-{_digest(turn.id)}"
    return [ToolMessage(id=made_id, created_at=turn.created_at, parts=results)]


def _digest(text: str) -> str:
    """24 hexadecimal digits: short enough for every provider's limit on call ids (40)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
