"""A prompt: what a model is to be asked, as one immutable value.

A `Prompt` is an id, messages and `LLMParams`. `appended` is the only place that adds tool results: it
puts each one behind its call. What of the prompt is really sent is decided later, by `views.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

from tenure.errors import InvalidValueError, PromptError
from tenure.messages import AssistantMessage, Json, Message, ToolCall, ToolMessage, ToolResult
from tenure.views import Place, paired_results


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The tool choice "call exactly this tool"."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
"""Whether the model may (auto), must not (none) or must (required, or one by name) call a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMParams:
    """Settings of a request; None leaves the provider's default.

    Args:
        temperature: Randomness, from 0.
        max_tokens: The longest reply, in tokens.
        tool_choice: See `ToolChoice`.
        user: The end user's id, for the provider's abuse detection.
        additional: Further settings by the provider layer's names, such as `{"top_p": 0.9}`.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    tool_choice: ToolChoice | None = None
    user: str | None = None
    additional: Mapping[str, Json] = field(default_factory=dict[str, Json], hash=False)

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidValueError(f"max_tokens={self.max_tokens!r} must be at least 1.")
        if self.temperature is not None and self.temperature < 0:
            raise InvalidValueError(f"temperature={self.temperature!r} must not be negative.")

    def with_defaults(self, other: LLMParams) -> LLMParams:
        """Return these params, with what is unset here taken from `other`."""
        unset = {
            f.name: getattr(other, f.name)
            for f in fields(self)
            if f.name != "additional" and getattr(self, f.name) is None
        }
        return replace(self, **unset, additional={**other.additional, **self.additional})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Messages and params under an id. Every change returns a new prompt.

    Args:
        id: A name of the caller's; nothing depends on it.
        messages: In conversation order; any sequence, kept as a tuple.
        params: Settings of the requests made with this prompt.
    """

    id: str = ""
    messages: tuple[Message, ...] = ()
    params: LLMParams = LLMParams()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))

    def copy(
        self, *, messages: Iterable[Message] | None = None, params: LLMParams | None = None
    ) -> Prompt:
        """Return this prompt with other messages, other params or both."""
        return Prompt(
            id=self.id,
            messages=self.messages if messages is None else tuple(messages),
            params=self.params if params is None else params,
        )

    def appended(self, *messages: Message, strict: bool = True) -> Prompt:
        """Return this prompt with `messages` added, each tool result behind its call.

        A result goes directly behind the *last* call of its id (without an id: behind the oldest
        unanswered call of its tool that has none), joining the results that are there already; the
        results of one tool message stay one message when they belong to one turn.

        Args:
            messages: In order.
            strict: Whether a result without its call, or a second result of one call, is an error.
                If not, such a result is added at the end as it is, and views leave it out.

        Raises:
            PromptError: `Failed to add tool result: no call message with id <id>`, or the call has
                a result already.
        """
        current = list(self.messages)
        for message in messages:
            if isinstance(message, ToolMessage) and message.tool_results:
                _place_results(current, message, strict=strict)
            else:
                current.append(message)
        return self.copy(messages=current)

    @property
    def latest_token_usage(self) -> int:
        """The total tokens of the last reply that says so, the whole prompt included; or 0.

        Counts of several replies must not be added up: each holds the prompt again.
        """
        for message in reversed(self.messages):
            if isinstance(message, AssistantMessage) and message.usage is not None:
                return message.usage.total_tokens
        return 0


def _place_results(current: list[Message], message: ToolMessage, *, strict: bool) -> None:
    """Add one tool message to `current`, dealing its results out to the turns they answer."""
    turns: dict[int, list[ToolResult]] = {}  # index of the assistant message -> its results
    answered = set(paired_results(current).values())
    for result in message.tool_results:
        place = _call_of(current, result, answered)
        if place is None and strict:
            raise PromptError(_unplaced(current, result))
        if place is not None:
            answered.add(place)
        turns.setdefault(-1 if place is None else place[0], []).append(result)
    others = tuple(part for part in message.parts if not isinstance(part, ToolResult))
    if len(turns) == 1 and (turn := next(iter(turns))) != -1:
        _insert_behind(current, turn, message)
        return
    for turn in sorted(turns, reverse=True):  # from the back, so that indexes stay right
        piece = replace(message, id=f"{message.id}:{turn}", parts=tuple(turns[turn]))
        if turn == -1:
            current.append(piece)
        else:
            _insert_behind(current, turn, piece)
    if others:
        current.append(replace(message, id=f"{message.id}:rest", parts=others))


def _insert_behind(current: list[Message], turn: int, message: ToolMessage) -> None:
    """Put results behind the assistant message at `turn`, into the tool message that is there."""
    behind = current[turn + 1] if turn + 1 < len(current) else None
    if isinstance(behind, ToolMessage):
        current[turn + 1] = replace(behind, parts=behind.parts + message.parts)
    else:
        current.insert(turn + 1, message)


def _call_of(messages: list[Message], result: ToolResult, answered: set[Place]) -> Place | None:
    """Find the call that `result` answers, unless it is among those `answered` already."""
    if result.call_id is not None:
        for index, position, call in reversed(list(_calls(messages))):
            if call.id == result.call_id:
                return None if (index, position) in answered else (index, position)
        return None
    for index, position, call in _calls(messages):
        if call.id is None and call.name == result.name and (index, position) not in answered:
            return index, position
    return None


def _calls(messages: list[Message]) -> Iterable[tuple[int, int, ToolCall]]:
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            for position, part in enumerate(message.parts):
                if isinstance(part, ToolCall):
                    yield index, position, part


def _unplaced(messages: list[Message], result: ToolResult) -> str:
    known = any(call.id == result.call_id for _, _, call in _calls(messages))
    if known and result.call_id is not None:
        return f"Failed to add tool result: the call with id {result.call_id} has a result already"
    return f"Failed to add tool result: no call message with id {result.call_id}"
