"""Messages and their parts: the values that every other module passes around.

A `Message` is one turn's worth of one role. An assistant turn is ONE message that holds its text, its
reasoning and all its tool calls as parts; the results of those calls are one tool message. Everything
here is frozen and knows nothing of storage. `prompt.py` strings messages together, `views.py` decides
which of them a model is shown.

Two messages are equal when everything but their `id` and `created_at` is. Rows and files hold the
canonical JSON that `codec.py` makes of them, which also keeps what a newer version added: unknown
fields in `extra`, unknown kinds of part as `Opaque`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal, TypeAlias, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, PlainSerializer, Tag

from tenure.clock import SYSTEM_CLOCK, in_utc
from tenure.errors import InvalidValueError
from tenure.mappings import empty

P = TypeVar("P")


def _require_texts(part: object, *names: str) -> None:
    """Refuse what could be stored but never read again."""
    for name in names:
        if not isinstance(value := getattr(part, name), str):
            what = f"{type(part).__name__}({name}=...)"
            raise InvalidValueError(f"{what} is a text, and not of type {type(value).__name__}.")


def _decode_bytes(value: object) -> object:
    return b64decode(value, validate=True) if isinstance(value, str) else value


def _encode_bytes(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode("ascii")


Json: TypeAlias = object
"""What `json.loads` returns: None, bool, int, float, str, list or dict of such."""

_Time: TypeAlias = Annotated[datetime, AfterValidator(in_utc), PlainSerializer(datetime.isoformat)]
_Bytes: TypeAlias = Annotated[
    bytes | None, BeforeValidator(_decode_bytes), PlainSerializer(_encode_bytes)
]


def _mapping() -> Mapping[str, Json]:
    """A field for an opaque mapping, by default `EMPTY`: compared, but no part of the hash."""
    return field(default_factory=empty, hash=False)


# --- parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    text: str
    provider: Mapping[str, Json] = _mapping()
    extra: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        _require_texts(self, "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(_Words):
    """Words. `provider` holds what must go back to the model's provider verbatim."""

    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """An image, a sound, a video or a file: its bytes, or the URL where the provider finds it.

    Args:
        media_type: The MIME type, such as `"image/png"`.
        data: The bytes themselves. Exactly one of `data` and `url` is given.
    """

    kind: Literal["media"] = "media"
    media_type: str
    data: _Bytes = None
    url: str | None = None
    filename: str | None = None
    provider: Mapping[str, Json] = _mapping()
    extra: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            what = f"Media of type {self.media_type!r}"
            raise InvalidValueError(f"{what} needs either data= or url=, and not both.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(_Words):
    """What a model thought before it answered; its signature, if any, is in `provider`."""

    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's wish to have a tool run.

    Args:
        id: What the result refers to; None (or empty) when the model gave none (`views` makes one).
        name: The tool.
        args: The arguments as JSON text, exactly as the model wrote it, valid or not.
    """

    kind: Literal["tool_call"] = "tool_call"
    id: str | None = None
    name: str
    args: str = "{}"
    provider: Mapping[str, Json] = _mapping()
    extra: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        _require_texts(self, "name", "args")
        object.__setattr__(self, "id", self.id or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came of one tool call.

    Args:
        call_id: The id of the call; None answers the oldest unanswered call of that name without id.
        name: The tool.
        parts: What the tool returned.
        is_error: Whether the tool failed; the parts then say how.
    """

    kind: Literal["tool_result"] = "tool_result"
    call_id: str | None = None
    name: str
    parts: tuple[ResultPart, ...] = ()
    is_error: bool = False
    provider: Mapping[str, Json] = _mapping()
    extra: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        _require_texts(self, "name")
        object.__setattr__(self, "call_id", self.call_id or None)
        object.__setattr__(self, "parts", _fitting(self, self.parts))

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return _joined(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A part of a kind that this version does not know, kept as it was.

    Args:
        kind: The kind that it says it is.
        data: All its other fields.
    """

    kind: str
    data: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        if self.kind in _KINDS or "kind" in self.data:
            raise InvalidValueError(
                f"Opaque(kind={self.kind!r}) is for other kinds, and for data without the key 'kind'."
            )


# --- messages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one request, or of several added up with `+`.

    Args:
        input_tokens: Tokens of everything that was sent.
        output_tokens: Tokens of the reply.
        requests: How many requests this counts.
        details: The provider's own counters, such as cached tokens.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    details: Mapping[str, int] = field(default_factory=empty, hash=False)

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        names = {**self.details, **other.details}
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            requests=self.requests + other.requests,
            details={n: self.details.get(n, 0) + other.details.get(n, 0) for n in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """What every message has.

    Args:
        parts: What the message consists of, in order.
        id: Names this message for good; an append of a known id is a no-op.
        created_at: Timezone-aware; kept in UTC. Order never depends on it.
        metadata: The application's own notes; JSON values. Never sent to a model.
    """

    parts: tuple[Part, ...]
    id: str = field(default_factory=SYSTEM_CLOCK.new_id, compare=False)
    created_at: _Time = field(default_factory=SYSTEM_CLOCK.now, compare=False)
    metadata: Mapping[str, Json] = _mapping()
    extra: Mapping[str, Json] = _mapping()

    def __post_init__(self) -> None:
        object.__setattr__(self, "created_at", in_utc(self.created_at))
        object.__setattr__(self, "parts", _fitting(self, self.parts))

    @property
    def text(self) -> str:
        """The text parts, joined by newlines; empty when there are none."""
        return _joined(self.parts)

    @property
    def content(self) -> str:
        """The same as `text`."""
        return self.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in this message, in order."""
        return tuple(p for p in self.parts if isinstance(p, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results in this message, in order."""
        return tuple(p for p in self.parts if isinstance(p, ToolResult))

    @property
    def is_tool_call(self) -> bool:
        """Whether this message calls a tool."""
        return bool(self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage(_Common):
    """Instructions to the model."""

    role: Literal["system"] = "system"
    parts: tuple[TextPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(_Common):
    """What the user said or attached."""

    role: Literal["user"] = "user"
    parts: tuple[UserPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage(_Common):
    """One whole reply of a model.

    Args:
        usage: What the provider counted for the request that gave this reply, or None.
        finish_reason: Why the model stopped: `"stop"`, `"length"`, `"tool_call"`, `"content_filter"`.
        model: The name under which the provider answered.
        provider: What belongs to the reply as a whole and must go back verbatim.
    """

    role: Literal["assistant"] = "assistant"
    parts: tuple[AssistantPart, ...]
    usage: Usage | None = None
    finish_reason: str | None = None
    model: str | None = None
    provider: Mapping[str, Json] = _mapping()

    @property
    def primary(self) -> ToolCall | str:
        """The first tool call, or else the text."""
        calls = self.tool_calls
        return calls[0] if calls else self.text

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined by newlines; empty when there are none."""
        return "\n".join(p.text for p in self.parts if isinstance(p, Reasoning))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage(_Common):
    """The results of one assistant turn's tool calls (and what came with them)."""

    role: Literal["tool"] = "tool"
    parts: tuple[ToolPart, ...]


def _joined(parts: Iterable[object]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


_KINDS = frozenset({"text", "media", "reasoning", "tool_call", "tool_result"})


def _fitting(owner: object, parts: Iterable[object]) -> tuple[object, ...]:
    """The parts as a tuple, if they are of classes that the owner may hold."""
    may_hold = _MAY_HOLD[type(owner)]
    fitting = tuple(parts)
    for part in fitting:
        if not isinstance(part, may_hold):
            what = f"{type(owner).__name__} cannot hold a part of type {type(part).__name__}"
            held = ", ".join(cls.__name__ for cls in may_hold)
            raise InvalidValueError(f"{what}; it holds {held}.")
    return fitting


def _tag(value: object) -> str:
    kind = getattr(value, "kind", None)
    if isinstance(value, Mapping):
        kind = cast("Mapping[str, object]", value).get("kind")
    return kind if isinstance(kind, str) and kind in _KINDS else "opaque"


_T = Annotated[Text, Tag("text")]
_M = Annotated[Media, Tag("media")]
_R = Annotated[Reasoning, Tag("reasoning")]
_C = Annotated[ToolCall, Tag("tool_call")]
_A = Annotated[ToolResult, Tag("tool_result")]
_O = Annotated[Opaque, Tag("opaque")]

Part: TypeAlias = Text | Media | Reasoning | ToolCall | ToolResult | Opaque
TextPart: TypeAlias = Annotated[_T | _O, Discriminator(_tag)]
UserPart: TypeAlias = Annotated[_T | _M | _O, Discriminator(_tag)]
ResultPart: TypeAlias = Annotated[_T | _M | _O, Discriminator(_tag)]
AssistantPart: TypeAlias = Annotated[_T | _M | _R | _C | _O, Discriminator(_tag)]
ToolPart: TypeAlias = Annotated[_T | _M | _A | _O, Discriminator(_tag)]
Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage

_MAY_HOLD: dict[type, tuple[type, ...]] = {
    SystemMessage: (Text, Opaque),
    UserMessage: (Text, Media, Opaque),
    AssistantMessage: (Text, Media, Reasoning, ToolCall, Opaque),
    ToolMessage: (Text, Media, ToolResult, Opaque),
    ToolResult: (Text, Media, Opaque),
}
