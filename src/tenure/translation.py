"""Our messages as pydantic-ai's, and its replies as ours: pure functions, without loss.

`model_messages` is the way there, `reply_of` the way back. A reply that was stored, read again and
sent on gives the provider the same bytes: what belongs to the provider (ids, signatures, details)
travels in the `provider` mapping of the part or message, under pydantic-ai's own field names, and a
part of a kind that we have no type for is an `Opaque` named `pydantic_ai:<kind>`. An `Opaque` or a
`provider` mapping of another origin is left out of requests. `providers.py` does the asking.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from itertools import groupby
from json import dumps
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json, to_jsonable_python

from tenure.messages import (
    AssistantMessage,
    Json,
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
    Usage,
    UserMessage,
)
from tenure.prompt import NamedTool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from pydantic_ai.settings import ModelSettings

    from tenure.models import ModelRequest

OPAQUE_PREFIX = "pydantic_ai:"
"""What the kinds of the opaque parts begin with that are rebuilt when they are sent back."""

_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_PART: TypeAdapter[pai.ModelResponsePart] = TypeAdapter(pai.ModelResponsePart, config=_BASE64)
_RESPONSE = TypeAdapter(pai.ModelResponse)
_MEDIA: TypeAdapter[pai.MultiModalContent] = TypeAdapter(pai.MultiModalContent)

_FINISH_REASONS = frozenset(get_args(pai.FinishReason))
_BILLED = frozenset({"cost", "audio_seconds"})  # no counts, so they travel in `provider`
_NOT_COUNTERS = _BILLED | {"input_tokens", "output_tokens", "details", "unmeasured_requests"}
_COUNTERS = tuple(f.name for f in fields(RequestUsage) if f.name not in _NOT_COUNTERS)
_URL_KINDS = {"image": "image-url", "audio": "audio-url", "video": "video-url"}


# --- there ---------------------------------------------------------------------------------------


def model_messages(messages: Sequence[Message]) -> list[pai.ModelMessage]:
    """Return what pydantic-ai sends for these messages, in order.

    Neighbours that are not the assistant's become one request, because some providers insist that
    the two sides alternate. A message of which nothing can be sent is left out.
    """
    sent: list[pai.ModelMessage] = []
    for is_reply, run in groupby(messages, lambda message: isinstance(message, AssistantMessage)):
        group = list(run)
        if is_reply:
            replies = (response_of(cast("AssistantMessage", message)) for message in group)
            sent.extend(reply for reply in replies if reply.parts)
        elif parts := [part for message in group for part in _request_parts(message)]:
            sent.append(pai.ModelRequest(parts=parts, timestamp=group[-1].created_at))
    return sent


def response_of(message: AssistantMessage) -> pai.ModelResponse:
    """Return the response of which `reply_of` made this message, or one as near to it as can be."""
    own: dict[str, object] = {
        "parts": [sent for part in message.parts if (sent := _response_part(part)) is not None],
        "usage": _request_usage(message),
        "model_name": message.model,
        "finish_reason": (
            message.finish_reason if message.finish_reason in _FINISH_REASONS else None
        ),
        "timestamp": message.created_at,
        "kind": "response",
    }
    try:
        return _RESPONSE.validate_python({**message.provider, **own})
    except ValidationError:  # the mapping is not of our making
        return _RESPONSE.validate_python(own)


def _request_parts(message: Message) -> Iterator[pai.ModelRequestPart]:
    when = message.created_at
    match message:
        case SystemMessage():
            if message.text:
                yield pai.SystemPromptPart(encodable(message.text), timestamp=when)
        case UserMessage():
            yield from _user_prompt(message.parts, when)
        case ToolMessage():
            yield from (_tool_return(result, when) for result in message.tool_results)
            rest = [part for part in message.parts if not isinstance(part, ToolResult)]
            yield from _user_prompt(rest, when)
        case AssistantMessage():  # never asked for
            return


def _user_prompt(parts: Sequence[Part], when: datetime) -> Iterator[pai.UserPromptPart]:
    content = _contents(parts)
    if len(content) == 1 and isinstance(content[0], str):
        yield pai.UserPromptPart(content[0], timestamp=when)
    elif content:
        # A provider that refuses an empty text must not refuse the picture beside it.
        yield pai.UserPromptPart([item for item in content if item] or "", timestamp=when)


def _tool_return(result: ToolResult, when: datetime) -> pai.ToolReturnPart:
    content = _contents(result.parts)
    texts = [item for item in content if isinstance(item, str)]
    part = pai.ToolReturnPart(
        tool_name=result.name,
        content="\n".join(texts) if len(texts) == len(content) else content,
        timestamp=when,
        outcome="failed" if result.is_error else "success",
    )
    if result.call_id is not None:
        part.tool_call_id = result.call_id
    return part


def _contents(parts: Sequence[Part]) -> list[str | pai.MultiModalContent]:
    return [
        encodable(part.text) if isinstance(part, Text) else content_of(part)
        for part in parts
        if isinstance(part, Text | Media)
    ]


def _response_part(part: Part) -> pai.ModelResponsePart | None:
    match part:
        case Text():
            return _part(part.provider, part_kind="text", content=encodable(part.text))
        case Reasoning():
            return _part(part.provider, part_kind="thinking", content=encodable(part.text))
        case ToolCall():
            own = {"part_kind": "tool-call", "tool_name": part.name, "args": encodable(part.args)}
            return _part(part.provider, **own, **({"tool_call_id": part.id} if part.id else {}))
        case Media(data=None):  # pydantic-ai has no reply with a file that is only named
            return pai.TextPart(str(part.url))
        case Media():
            return _part(part.provider, part_kind="file", content=content_of(part))
        case Opaque():
            return _rebuilt(part)
        case ToolResult():  # no reply holds one
            return None


def _part(provider: Mapping[str, Json], **own: object) -> pai.ModelResponsePart:
    try:
        return _PART.validate_python({**provider, **own})
    except ValidationError:  # the mapping is not of our making
        return _PART.validate_python(own)


def _rebuilt(part: Opaque) -> pai.ModelResponsePart | None:
    """The part that this was; None when it was never pydantic-ai's, or is of a newer one."""
    if not part.kind.startswith(OPAQUE_PREFIX):
        return None
    kind = part.kind.removeprefix(OPAQUE_PREFIX)
    try:  # from text, because only there bytes are base64
        return _PART.validate_json(dumps({**part.data, "part_kind": kind}))
    except (ValidationError, ValueError, TypeError):
        return None


def content_of(media: Media) -> pai.MultiModalContent:
    """Return a file or a URL as pydantic-ai's content for a prompt or a tool's result."""
    own: dict[str, object] = {"media_type": media.media_type, "identifier": media.filename}
    kind = str(media.provider.get("kind", _kind_of(media)))
    if media.data is not None:
        kind = "binary"
        own["data"] = media.data
    else:
        own["file_id" if kind == "uploaded-file" else "url"] = media.url
    try:
        return _MEDIA.validate_python({**media.provider, **own, "kind": kind})
    except ValidationError:  # the mapping is not of our making
        own.pop("file_id", None)
        address = {} if media.data is not None else {"url": media.url}
        return _MEDIA.validate_python({**own, **address, "kind": _kind_of(media)})


def _kind_of(media: Media) -> str:
    if media.data is not None:
        return "binary"
    return _URL_KINDS.get(media.media_type.partition("/")[0], "document-url")


def _request_usage(message: AssistantMessage) -> RequestUsage:
    usage = message.usage
    if usage is None:
        return RequestUsage()
    counters = {name: count for name, count in usage.details.items() if name in _COUNTERS}
    return RequestUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        details={name: count for name, count in usage.details.items() if name not in counters},
        **counters,
    )


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def settings_of(request: ModelRequest) -> ModelSettings:
    """The params under pydantic-ai's names.

    `user` goes to the providers that take one (OpenAI and its likes, Anthropic, xAI); each reads
    its own setting and leaves the others alone. What stands in `additional` is last and wins.
    """
    params = request.params
    settings: dict[str, object] = {}
    if params.temperature is not None:
        settings["temperature"] = params.temperature
    if params.max_tokens is not None:
        settings["max_tokens"] = params.max_tokens
    if params.tool_choice is not None:
        choice = params.tool_choice
        settings["tool_choice"] = [choice.name] if isinstance(choice, NamedTool) else choice
    if params.user is not None:
        settings["openai_user"] = settings["xai_user"] = params.user
        settings["anthropic_metadata"] = {"user_id": params.user}
    # A TypedDict of every provider's settings; which keys there are is the caller's choice.
    return cast("ModelSettings", {**settings, **params.additional})


def parameters_of(request: ModelRequest) -> ModelRequestParameters:
    """The tools, and the output schema as one that the provider itself enforces."""
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=dict(tool.parameters),
        )
        for tool in request.tools
    ]
    if request.output_schema is None:
        return ModelRequestParameters(function_tools=tools)
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native",
        output_object=OutputObjectDefinition(json_schema=dict(request.output_schema)),
    )


# --- and back ------------------------------------------------------------------------------------


def reply_of(response: pai.ModelResponse) -> AssistantMessage:
    """Return a reply as a message, part for part and in order."""
    provider = _fields_of(
        response, {"parts", "usage", "model_name", "finish_reason", "timestamp", "kind"}
    )
    if billed := _fields_of(response.usage, {f.name for f in fields(RequestUsage)} - _BILLED):
        provider["usage"] = billed
    return AssistantMessage(
        parts=tuple(part_of(part) for part in response.parts),
        created_at=response.timestamp,
        usage=_usage_of(response.usage),
        finish_reason=response.finish_reason,
        model=response.model_name,
        provider=provider,
    )


def part_of(part: pai.ModelResponsePart) -> Text | Reasoning | ToolCall | Media | Opaque:
    """Return one part of a reply as ours."""
    match part:
        case pai.TextPart():
            return Text(text=part.content, provider=_fields_of(part, {"content", "part_kind"}))
        case pai.ThinkingPart():
            return Reasoning(text=part.content, provider=_fields_of(part, {"content", "part_kind"}))
        case pai.ToolCallPart():
            own = {"tool_name", "args", "tool_call_id", "part_kind"}
            return ToolCall(
                id=part.tool_call_id,
                name=part.tool_name,
                args=args_text(part.args),
                provider=_fields_of(part, own),
            )
        case pai.FilePart():
            media = media_of(part.content)
            details = _fields_of(part, {"content", "part_kind"})
            return Media(
                media_type=media.media_type,
                data=media.data,
                filename=media.filename,
                provider={**media.provider, **details},
            )
        case _:
            data = cast("dict[str, Json]", _PART.dump_python(part, mode="json"))
            return Opaque(kind=OPAQUE_PREFIX + str(data.pop("part_kind")), data=data)


def media_of(content: pai.MultiModalContent) -> Media:
    """Return a file, a URL or an uploaded file of pydantic-ai's as ours."""
    own = {"data", "url", "file_id", "kind", "_media_type", "_identifier"}
    provider = _fields_of(content, own)
    data = content.data if isinstance(content, pai.BinaryContent) else None
    url = None
    if isinstance(content, pai.UploadedFile):
        url = content.file_id
    elif not isinstance(content, pai.BinaryContent):
        url = content.url
    try:
        media_type = content.media_type
    except ValueError:  # a URL that does not say, in a part that does not say either
        media_type = "application/octet-stream"
    name = _name_of(content)
    media = Media(media_type=media_type, data=data, url=url, filename=name, provider=provider)
    if content.kind == _kind_of(media):
        return media
    provider["kind"] = content.kind
    return Media(media_type=media_type, data=data, url=url, filename=name, provider=provider)


def _name_of(content: pai.MultiModalContent) -> str | None:
    """The identifier that somebody gave; pydantic-ai makes one of the content where nobody did."""
    given: str | None = vars(content).get("_identifier")
    if isinstance(content, pai.BinaryContent):
        made = pai.BinaryContent(content.data, media_type=content.media_type).identifier
        return None if given == made else given
    return given


def args_text(args: str | Mapping[str, Any] | None) -> str:
    """Return a call's arguments as JSON text; an absent one is an empty object."""
    if args is None:
        return "{}"
    return args if isinstance(args, str) else to_json(args).decode()


def _usage_of(usage: RequestUsage) -> Usage | None:
    """What the provider counted, further counters among the details; None if it said nothing."""
    if not usage.has_values():
        return None
    counters = {name: count for name in _COUNTERS if (count := getattr(usage, name))}
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        requests=1,
        details={**usage.details, **counters},
    )


def _fields_of(value: object, own: set[str]) -> dict[str, Json]:
    """The fields of a pydantic-ai value that we have none for, as JSON; defaults are left out."""
    kept = {
        f.name: getattr(value, f.name)
        for f in fields(cast("Any", value))
        if f.name not in own and getattr(value, f.name) != _default(f)
    }
    # NaN has no place in JSON; a log-probability may be one.
    return to_jsonable_python(kept, bytes_mode="base64", inf_nan_mode="null")


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default
