"""The canonical JSON of messages, both ways: what rows, files and `tenure show --json` hold.

Sorted keys and pure ASCII, so that NUL and lone surrogates pass through any text column unharmed, and
equal messages have equal bytes. Fields that say nothing (None, empty mappings) are left out. What a
newer version wrote is kept: unknown fields in `extra`, unknown kinds of part as `Opaque`; both are
written again as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, cast

from tenure import messages as m
from tenure.errors import InvalidValueError, StoreError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from tenure.messages import Json, Message

_KEPT_WHEN_EMPTY = frozenset({"text", "args", "parts", "is_error"})

_MESSAGES: dict[str, type] = {
    "system": m.SystemMessage,
    "user": m.UserMessage,
    "assistant": m.AssistantMessage,
    "tool": m.ToolMessage,
}
_PARTS: dict[str, type] = {
    "text": m.Text,
    "media": m.Media,
    "reasoning": m.Reasoning,
    "tool_call": m.ToolCall,
    "tool_result": m.ToolResult,
}


def to_dict(message: Message) -> dict[str, Json]:
    """Return the JSON object of a message, as nested dicts and lists."""
    return _flattened(cast("dict[str, object]", _adapter().dump_python(message)))


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
    except ValidationError as exc:
        where = ".".join(str(step) for step in exc.errors()[0]["loc"])
        raise StoreError(
            f"A stored {role} message cannot be read ({where}: {exc.errors()[0]['msg']}); "
            "it was damaged, or not written by tenure."
        ) from exc


def to_json(message: Message) -> str:
    """Return the canonical JSON of a message.

    Raises:
        InvalidValueError: Its metadata or provider data hold something that JSON has not, such as an
            object of a class of yours or NaN; the text names the type.
    """
    try:
        return json.dumps(to_dict(message), ensure_ascii=True, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InvalidValueError(
            f"The {message.role} message {message.id!r} cannot be written as JSON: {exc}; "
            "put plain JSON values into its metadata and provider fields."
        ) from exc


def from_json(text: str) -> Message:
    """Return the message that `to_json` gave this text.

    Raises:
        StoreError: The text is not the JSON of a message.
    """
    try:
        data: object = json.loads(text)
    except ValueError as exc:
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
    for name, value in data.items():
        if name == "parts":
            parts = cast("tuple[dict[str, object], ...]", value)
            flat[name] = [_flattened(part) for part in parts]
        elif name in _KEPT_WHEN_EMPTY or (value is not None and value != {}):
            flat[name] = value
    return flat


def _unflattened(data: Mapping[str, Json], cls: type) -> dict[str, object]:
    """Sort the fields that `cls` has from those that it has not, which go into `extra`."""
    known = {f.name for f in fields(cls)} - {"extra"}
    value: dict[str, object] = {name: data[name] for name in data if name in known}
    value["extra"] = {name: data[name] for name in data if name not in known}
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
def _adapter() -> TypeAdapter[Message]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[m.Message, Field(discriminator="role")])
