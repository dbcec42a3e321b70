"""A prompt: what a model is to be asked, as one immutable value.

A `Prompt` is an id, messages and `LLMParams`. `appended` is the only place that adds tool results: it
puts each one behind its call. What of the prompt is really sent is decided later, by `views.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Literal, TypeAlias

from tenure.errors import InvalidValueError, PromptError
from tenure.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolPart,
    ToolResult,
    UserMessage,
)
from tenure.views import Pairing


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

    Raises:
        InvalidValueError: (From `copy`, too) one of the messages is none.
    """

    id: str = ""
    messages: tuple[Message, ...] = ()
    params: LLMParams = LLMParams()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        if not _KINDS.issuperset(map(type, self.messages)):  # quick, since every change comes here
            _require_messages(self.messages)

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

        A result goes behind the *last* turn that has a call of its id (without an id: behind the
        oldest unanswered call of its tool that has none), after the results that are there already.
        The results of one tool message stay one message when they belong to one turn; otherwise
        each turn gets a message of its own with an id made of the message's.

        Args:
            messages: In order.
            strict: Whether a result without its call, or a second result of one call, is an error.
                If not, such a result is added at the end as it is, and views leave it out.

        Raises:
            InvalidValueError: One of them is no message.
            PromptError: `Failed to add tool result: no call message with id <id>`, or the call has
                a result already.
        """
        _require_messages(messages)
        if not any(message.role == "tool" for message in messages):
            return self.copy(messages=(*self.messages, *messages))
        runs = _Runs(self.messages)
        for message in messages:
            if isinstance(message, ToolMessage) and message.tool_results:
                runs.place(message, strict=strict)
            else:
                runs.add(message)
        return self.copy(messages=runs.messages)

    @property
    def latest_token_usage(self) -> int:
        """The total tokens of the last reply that says so, the whole prompt included; or 0.

        Counts of several replies must not be added up: each holds the prompt again.
        """
        for message in reversed(self.messages):
            if isinstance(message, AssistantMessage) and message.usage is not None:
                return message.usage.total_tokens
        return 0


_KINDS = frozenset({SystemMessage, UserMessage, AssistantMessage, ToolMessage})


def _require_messages(values: Iterable[Message]) -> None:
    for value in values:
        if type(value) not in _KINDS:
            raise InvalidValueError(
                f"An object of type {type(value).__name__} is no message; give for instance "
                "user('...') or assistant('...')."
            )


class _Runs:
    """A prompt's messages, cut into runs: a message and the tool messages behind it."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._runs: list[list[Message]] = []
        self._pairing = Pairing()
        for message in messages:
            self.add(message)
            for result in message.tool_results:
                self._pairing.take(result)

    @property
    def messages(self) -> Iterator[Message]:
        return chain.from_iterable(self._runs)

    def add(self, message: Message) -> None:
        """Add a message at the end."""
        if isinstance(message, ToolMessage) and self._runs:
            self._runs[-1].append(message)
            return
        for position, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                self._pairing.add((len(self._runs), position), part)
        self._runs.append([message])

    def place(self, message: ToolMessage, *, strict: bool) -> None:
        """Add a tool message, dealing its results out to the turns they answer."""
        pieces: dict[int | None, list[ToolPart]] = {}  # run, or None for the end -> parts
        for result in message.tool_results:
            call = self._pairing.take(result)
            if call is None and strict:
                raise PromptError(self._refusal(result))
            pieces.setdefault(None if call is None else call[0], []).append(result)
        if len(pieces) == 1:
            self._insert(next(iter(pieces)), message)
            return
        words = [part for part in message.parts if not isinstance(part, ToolResult)]
        if words:
            pieces.setdefault(None, []).extend(words)
        for number, (run, parts) in enumerate(pieces.items(), 1):
            self._insert(run, replace(message, id=f"{message.id}:{number}", parts=tuple(parts)))

    def _insert(self, run: int | None, message: ToolMessage) -> None:
        if run is None:
            self.add(message)
        else:
            self._runs[run].append(message)

    def _refusal(self, result: ToolResult) -> str:
        if result.call_id is not None and self._pairing.knows(result.call_id):
            why = f"the call with id {result.call_id} has a result already"
        else:
            why = f"no call message with id {result.call_id}"
        return f"Failed to add tool result: {why}"
