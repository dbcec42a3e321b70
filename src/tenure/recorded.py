"""Values of a run as JSON, and back in another process: exact, or refused when they are written.

All that `values.py` describes, and our own values, at any depth:

    $tenure:message $tenure:part    messages and their parts, as `codec.py` writes them; what a newer
                                    version added to them is kept
    $tenure:outcome $tenure:result  `ToolOutcome` and `StructuredResult`: an object of the fields
    $tenure:usage $tenure:memory …  the other classes of `_NAMES`; the same
    $tenure:empty                   `EMPTY`

A class of the user's is written only if it is among the `types` with which it will be read. Two things are
not exact: in a message, a subclass of `str`, `int` or `float` becomes that type, as in a store; and an
exception in a `ToolOutcome` or `StructuredResult` becomes one of three. `StructuredOutputError` stays one,
with its text and `raw`; `ToolError` stays one, with its text; every other one is a `RecordedError`. The
same holds for their subclasses. Causes, notes and tracebacks are not kept. Exceptions anywhere else are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import tenure.messages as m
from tenure.codec import flat, from_dict, part_from_dict
from tenure.errors import InvalidValueError, StoreError, StructuredOutputError
from tenure.instances import fields_of, instance_of
from tenure.mappings import EMPTY
from tenure.memory import Memory, Provenance
from tenure.messages import Json, Usage
from tenure.prompt import LLMParams, NamedTool, Prompt
from tenure.scalars import InexactError, full_name
from tenure.structured import StructuredResult
from tenure.tools import ToolError, ToolOutcome, ToolSpec, text_of_error
from tenure.values import Reader, Writer

_FLAT = {
    **dict.fromkeys(
        (m.SystemMessage, m.UserMessage, m.AssistantMessage, m.ToolMessage), "$tenure:message"
    ),
    **dict.fromkeys(
        (m.Text, m.Media, m.Reasoning, m.ToolCall, m.ToolResult, m.Opaque), "$tenure:part"
    ),
}
_NAMES: dict[type, str] = {
    ToolOutcome: "tenure:outcome",
    StructuredResult: "tenure:result",
    ToolSpec: "tenure:tool",
    Usage: "tenure:usage",
    Prompt: "tenure:prompt",
    LLMParams: "tenure:params",
    NamedTool: "tenure:named_tool",
    Memory: "tenure:memory",
    Provenance: "tenure:provenance",
}
_ADVICE = "give Persistence(types=[{}])"
_CLASSES = {name: cls for cls, name in _NAMES.items()}


class RecordedError(Exception):
    """An exception of an earlier process: what is left of it.

    Attributes:
        type_name: Its class, such as `"ValueError"` or `"app.shop.SoldOutError"`.
        text: What it said.
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text

    def __reduce__(self) -> tuple[type[RecordedError], tuple[str, str]]:
        return type(self), (self.type_name, self.text)


def to_recorded(value: object, what: str, *, types: Iterable[type] = ()) -> Json:
    """Return the JSON of a value, as nested dicts and lists.

    Args:
        value: The value; it is not changed, and shares nothing that can be changed with the JSON.
        what: What it is, as the first words of an error: "The output of node 'strategy/plan'".
        types: The classes of the user's that may be in it; see `from_tagged`.

    Raises:
        InvalidValueError: Something in it has no exact form, or could not be read with these types; the
            text names its type and its place. Or one of the types is none that can be built.
    """
    reader = _Reader(types)
    writer = _Writer(what, reader.types)
    data = writer.whole(value)
    if writer.has_instances:  # whose own equality and hash have a say in whether they can be read
        _read(reader, data, f"{what} could not be read again")
    return data


def from_recorded(data: Json, what: str, *, types: Iterable[type] = ()) -> object:
    """Return the value of which `to_recorded` made this.

    Args:
        data: What `to_recorded` returned, also after a way through a text of JSON.
        what: What it is, as the first words of an error.
        types: The classes of the user's that may be built; see `from_tagged`.

    Raises:
        InvalidValueError: It holds a class that is not in `types`, or is damaged, or was written by a
            newer tenure. Or one of the types is none that can be built.
    """
    return _read(_Reader(types), data, f"{what} cannot be read")


def _read(reader: Reader, data: Json, complaint: str) -> object:
    try:
        return reader.whole(data)
    except InvalidValueError as exc:
        raise InvalidValueError(f"{complaint} ({str(exc).rstrip('.')}).") from exc


class _Writer(Writer):
    """Tagged JSON with our own values, and with classes of these types only."""

    def __init__(self, what: str, types: Mapping[str, type]) -> None:
        super().__init__(what, at=" at ")
        self._types = types
        self._in_message = False
        self.has_instances = False

    def _tagged(self, given: object) -> Json:
        cls = type(given)
        if cls in _FLAT:
            return {_FLAT[cls]: self._flat(cast("m.Message | m.Part", given))}
        if cls in _NAMES:
            return {f"${_NAMES[cls]}": self._mapping(_fields_of(given), attributes=True)}
        if given is EMPTY:
            return {"$tenure:empty": None}
        if self._in_message and (bare := _bare(given)) is not None:
            return self.write(bare)
        return super()._tagged(given)

    def _flat(self, value: m.Message | m.Part) -> Json:
        try:
            data = flat(value)
        except ValueError as exc:
            raise InexactError(
                f"{exc}; put plain JSON values into metadata and provider fields"
            ) from exc
        self._in_message = True
        written = self._mapping(data, attributes=True)
        self._in_message = False
        return written

    def _name_of(self, cls: type) -> str:
        name = full_name(cls)
        if self._types.get(name) is not cls:
            other = "types= has another class of this name, so " if name in self._types else ""
            advice = _ADVICE.format(cls.__name__)
            raise InexactError(f"{other}it could not be read again; {advice}")
        self.has_instances = True
        return name


class _Reader(Reader):
    """Reads our own values, too."""

    _advice = _ADVICE

    def _tagged(self, tag: str, payload: Any) -> object:
        try:
            if tag == "tenure:message":
                return from_dict(self._mapping(payload))
            if tag == "tenure:part":
                return part_from_dict(self._mapping(payload))
        except StoreError as exc:
            raise InvalidValueError(str(exc)) from exc
        if tag in _CLASSES:
            return _made(_CLASSES[tag], self._mapping(payload))
        if tag == "tenure:empty":
            return EMPTY
        return super()._tagged(tag, payload)


def _bare(value: object) -> str | int | float | None:
    """A text or number without the subclass that it is of, as json writes it."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else None


def _fields_of(value: object) -> dict[str, object]:
    found = fields_of(value)
    if isinstance(value, (ToolOutcome, StructuredResult)):
        found["error"] = _error_fields(value.error)
    return found


def _error_fields(error: Exception | None) -> dict[str, str] | None:
    match error:
        case None:
            return None
        case StructuredOutputError():
            return {"kind": "structured_output", "text": text_of_error(error), "raw": error.raw}
        case ToolError():
            return {"kind": "tool", "text": text_of_error(error)}
        case RecordedError():
            return {"kind": "other", "type": error.type_name, "text": error.text}
        case _:
            name = full_name(type(error))
            return {"kind": "other", "type": name, "text": text_of_error(error)}


def _made(cls: type, values: dict[str, Any]) -> object:
    if cls in (ToolOutcome, StructuredResult):
        values["error"] = _error(values.get("error"))
    made = instance_of(cls, values)
    if isinstance(made, Memory) and made.embedding is not None:
        made.embedding.flags.writeable = False
    return made


def _error(fields: dict[str, str] | None) -> Exception | None:
    match fields:
        case None:
            return None
        case {"kind": "structured_output", "text": text, "raw": raw}:
            return StructuredOutputError(text, raw=raw)
        case {"kind": "tool", "text": text}:
            return ToolError(text)
        case {"kind": "other", "type": name, "text": text}:
            return RecordedError(name, text)
        case _:
            raise InvalidValueError("it holds an error of an unknown kind")
