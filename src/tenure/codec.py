"""The canonical JSON of messages, both ways: what rows, files and `tenure show --json` hold.

Sorted keys and pure ASCII, so that NUL and lone surrogates pass through any text column unharmed, and
equal messages have equal bytes. Fields that say nothing (None, empty mappings) are left out. What a
newer version wrote is kept: unknown fields in `extra`, unknown kinds of part as `Opaque`; both are
written again as they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, cast

import tenure.messages as m
from tenure.errors import InvalidValueError, StoreError
from tenure.mappings import EMPTY

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

    from tenure.messages import Json, Message

_ENCODER = json.JSONEncoder(ensure_ascii=True, sort_keys=True, allow_nan=False)

_MAPPINGS = ("metadata", "provider", "extra", "data")

_MESSAGES: dict[str, type] = {
    "system": m.SystemMessage,
    "user": m.UserMessage,
    "assistant": m.AssistantMessage,
    "tool": m.ToolMessage,
}
_ROLES = {cls: role for role, cls in _MESSAGES.items()}
_PARTS: dict[str, type] = {
    "text": m.Text,
    "media": m.Media,
    "reasoning": m.Reasoning,
    "tool_call": m.ToolCall,
    "tool_result": m.ToolResult,
}


def to_dict(message: Message) -> dict[str, Json]:
    """Return the JSON object of a message, as nested dicts and lists.

    Raises:
        InvalidValueError: See `to_json`.
    """
    try:
        return flat(message)
    except ValueError as exc:
        raise _unwritable(message, str(exc)) from exc


def flat(value: Message | m.Part) -> dict[str, Json]:
    """Return what `to_dict` returns, also of a part alone.

    Raises:
        ValueError: It holds something that JSON has not; the text is the reason alone.
    """
    if isinstance(value, m.Part):
        holders = (value, *value.parts) if isinstance(value, m.ToolResult) else (value,)
        return _dumped(value, _part_adapter(type(value)), holders)
    if is_plain(value):
        return _plain_dict(value)
    return _dumped(value, _adapter(), (value, *parts_of(value)))


def _dumped(value: object, adapter: TypeAdapter[Any], holders: Iterable[object]) -> dict[str, Json]:
    from pydantic_core import PydanticSerializationError

    try:
        for holder in holders:
            for name in _MAPPINGS:
                _require_json(getattr(holder, name, None))
        return _flattened(adapter.dump_python(value, warnings="error"))
    except PydanticSerializationError as exc:  # its own text holds the value
        found = re.search(r"field_name='(\w+)'.*input_type=(\w+)", str(exc), re.DOTALL)
        why = f"{found[1]} is of type {found[2]}" if found else "a field is of the wrong type"
        raise ValueError(why) from None
    except (TypeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def is_plain(message: Message) -> bool:
    """Whether a message is nothing but texts, with no mapping, no usage, and no subclass in it.

    What people say mostly is. Writing it needs no checks, and nothing in it can be changed.
    """
    return (
        _ROLES.get(type(message)) == message.role
        and message.metadata is message.extra is EMPTY
        and type(message.id) is str
        and type(message.created_at) is datetime
        and all(
            type(part) is m.Text
            and part.kind == "text"
            and type(part.text) is str
            and part.provider is part.extra is EMPTY
            for part in message.parts
        )
        and (
            not isinstance(message, m.AssistantMessage)
            or (
                message.provider is EMPTY
                and message.usage is message.finish_reason is message.model is None
            )
        )
    )


def _plain_dict(message: Message) -> dict[str, Json]:
    return {
        "role": message.role,
        "id": message.id,
        "created_at": message.created_at.isoformat(),
        "parts": [
            {"kind": "text", "text": part.text}
            for part in cast("tuple[m.Text, ...]", message.parts)
        ],
    }


def from_dict(data: Mapping[str, Json]) -> Message:
    """Return the message that `to_dict` gave this object.

    Raises:
        StoreError: This is not a message's object; the text names the field.
    """
    from pydantic import ValidationError

    role = data.get("role")
    if not isinstance(role, str) or role not in _MESSAGES:
        raise StoreError(
            f"A stored message has the unknown role {role!r}; was it written by tenure?"
        )
    try:
        return _adapter().validate_python(_unflattened(data, _MESSAGES[role]))
    except (ValidationError, RecursionError) as exc:
        raise _unreadable(f"{role} message", exc) from exc


def part_from_dict(data: Mapping[str, Json]) -> m.Part:
    """Return the part that `flat` gave this object.

    Raises:
        StoreError: This is not a part's object; the text names the field.
    """
    from pydantic import ValidationError

    cls = _PARTS.get(str(data.get("kind")), m.Opaque)
    try:
        return _part_adapter(cls).validate_python(_unflattened_part(data))
    except (ValidationError, RecursionError) as exc:
        raise _unreadable(f"part of kind {data.get('kind')!r}", exc) from exc


def _unreadable(what: str, error: ValidationError | RecursionError) -> StoreError:
    if isinstance(error, RecursionError):
        return StoreError(f"A stored {what} is nested too deeply; it was damaged.")
    problem = error.errors()[0]
    where = ".".join(str(step) for step in problem["loc"])
    return StoreError(
        f"A stored {what} cannot be read ({where}: {problem['msg']}); "
        "it was damaged, or not written by tenure."
    )


def to_json(message: Message) -> str:
    """Return the canonical JSON of a message.

    Raises:
        InvalidValueError: It holds something that JSON has not, such as an object of a class of yours
            or NaN; the text names the type. (A tuple in a mapping is written as a list.)
    """
    data = to_dict(message)
    try:
        return _ENCODER.encode(data)
    except (TypeError, ValueError, RecursionError) as exc:
        raise _unwritable(message, str(exc)) from exc


def _unwritable(message: Message, why: str) -> InvalidValueError:
    return InvalidValueError(
        f"The {message.role} message {message.id!r} cannot be written as JSON: {why}; "
        "put plain JSON values into its metadata and provider fields."
    )


def parts_of(message: Message) -> Iterator[m.Part]:
    """Yield the parts of a message, those inside of tool results too, in order."""
    for part in message.parts:
        yield part
        if isinstance(part, m.ToolResult):
            yield from part.parts


def _require_json(value: object) -> None:
    """Refuse what pydantic or json would turn into something else in silence."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is of type {type(key).__name__}, and not a text")
            _require_json(item)
    elif isinstance(value, (list, tuple)):
        for item in cast("list[object] | tuple[object, ...]", value):
            _require_json(item)
    elif not isinstance(value, (str, bytes, int, float, NoneType)):
        raise TypeError(f"an object of type {type(value).__qualname__} is not JSON")


def from_json(text: str) -> Message:
    """Return the message that `to_json` gave this text.

    Raises:
        StoreError: The text is not the JSON of a message.
    """
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise StoreError(f"A stored message is not JSON ({exc}); it was damaged.") from exc
    if not isinstance(data, dict):
        raise StoreError("A stored message is not a JSON object; it was damaged.")
    return from_dict(cast("dict[str, Json]", data))


def _flattened(data: dict[str, object]) -> dict[str, Json]:
    """Leave out what says nothing, and put `extra` (and an opaque part's data) beside the rest."""
    kind = data.get("kind")
    if "role" not in data and kind not in _PARTS and "data" in data:  # an Opaque part
        return {**cast("dict[str, Json]", data["data"]), "kind": kind}
    flat = dict(cast("dict[str, Json]", data.pop("extra", {})))
    if known := flat.keys() & data.keys():
        raise ValueError(f"extra holds {sorted(known)[0]!r}, which is a field of its own")
    for name, value in data.items():
        if name == "parts":
            parts = cast("tuple[dict[str, object], ...]", value)
            flat[name] = [_flattened(part) for part in parts]
        elif value is not None and value != {}:
            flat[name] = value
    return flat


def _unflattened(data: Mapping[str, Json], cls: type) -> dict[str, object]:
    """Sort the fields that `cls` has from those that it has not, which go into `extra`."""
    known = _fields_of(cls)
    value: dict[str, object] = {}
    extra: dict[str, object] = {}
    for name, item in data.items():
        (value if name in known else extra)[name] = item
    if extra:
        value["extra"] = extra
    parts = value.get("parts")
    if isinstance(parts, list):
        value["parts"] = [_unflattened_part(part) for part in cast("list[Json]", parts)]
    return value


def _unflattened_part(part: Json) -> object:
    if not isinstance(part, dict):
        return part  # refused by the validation that follows
    data = cast("dict[str, Json]", part)
    kind = data.get("kind")
    if isinstance(kind, str) and kind in _PARTS:
        return _unflattened(data, _PARTS[kind])
    return {"kind": kind, "data": {name: data[name] for name in data if name != "kind"}}


@cache
def _fields_of(cls: type) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls)) - {"extra"}


@cache
def _adapter() -> TypeAdapter[Message]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[m.Message, Field(discriminator="role")])


@cache
def _part_adapter(cls: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)
