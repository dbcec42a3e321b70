"""The canonical JSON of messages, both ways."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tenure import codec
from tenure.errors import InvalidValueError, StoreError
from tenure.messages import (
    AssistantMessage,
    Media,
    Message,
    Opaque,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tenure.saying import assistant, user
from tenure.testing.histories import random_history

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def plain(**changes: object) -> dict[str, object]:
    """The JSON object of a user message, changed."""
    stored: dict[str, object] = {
        "role": "user",
        "id": "m1",
        "created_at": "2026-01-02T03:04:05+00:00",
        "parts": [{"kind": "text", "text": "hi"}],
    }
    return stored | changes


def again(message: Message) -> Message:
    return codec.from_json(codec.to_json(message))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(0, 2**32).map(random_history))
def test_round_trip_is_exact(history: list[Message]) -> None:
    """A message is read back as it was: equal, of the same id and time, and of the same bytes."""
    for message in history:
        text = codec.to_json(message)
        loaded = codec.from_json(text)
        assert loaded == message
        assert type(loaded) is type(message)
        assert (loaded.id, loaded.created_at) == (message.id, message.created_at)
        assert codec.to_json(loaded) == text
        assert text.isascii()
        assert codec.from_dict(codec.to_dict(message)) == message


def outcome(message: Message) -> str:
    """The JSON of a message, or what is said of it."""
    try:
        return codec.to_json(message)
    except InvalidValueError as error:
        return str(error)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.integers(0, 2**32).map(random_history))
def test_plain_messages_have_the_same_json(history: list[Message]) -> None:
    """A message of texts alone is written without pydantic, in the bytes that pydantic would give."""
    for message in history:
        texts = tuple(part for part in message.parts if isinstance(part, Text))
        plain = type(message)(parts=texts, id=message.id, created_at=message.created_at)
        assert codec.is_plain(plain)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "is_plain", lambda _: False)
            whole = codec.to_json(plain)
        assert codec.to_json(plain) == whole


class Word(str):
    pass


class Moment(datetime):
    pass


class Mine(Text):
    pass


@pytest.mark.parametrize(
    "message",
    [
        replace(user("q"), metadata={}),
        replace(user("q"), metadata={"k": 1}),
        replace(user("q"), extra={"later": 1}),
        replace(user("q"), id=Word("m")),
        replace(user("q"), id=7),  # pyright: ignore
        replace(user("q"), created_at=Moment.fromtimestamp(0, UTC)),
        replace(user("q"), role="assistant"),  # pyright: ignore
        replace(user("q"), role=[]),  # pyright: ignore
        user(Text(text=Word("q"))),
        user(Text(text="q", kind="media")),  # pyright: ignore
        user(Text(text="q", provider={"k": 1})),
        user(Text(text="q", extra={"later": 1})),
        user(Mine(text="q")),
        user(Media(media_type="a/b", url="u")),
        assistant(ToolCall(name="t")),
        replace(assistant("a"), usage=Usage()),
        replace(assistant("a"), model="m"),
        replace(assistant("a"), finish_reason="stop"),
        replace(assistant("a"), provider={"k": 1}),
    ],
)
def test_other_messages_are_not_plain(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping, a subclass, a wrong type, or anything but texts goes through pydantic's checks."""
    assert not codec.is_plain(message)
    said = outcome(message)
    monkeypatch.setattr(codec, "is_plain", lambda _: False)
    assert outcome(message) == said


def test_json_is_canonical() -> None:
    """Keys are sorted, and what says nothing is left out: equal messages have equal bytes."""
    message = UserMessage(parts=(Text(text="ä"),), id="m", created_at=MOMENT)
    assert codec.to_json(message) == (
        '{"created_at": "2026-01-02T03:04:05.678901+00:00", "id": "m", '
        '"parts": [{"kind": "text", "text": "\\u00e4"}], "role": "user"}'
    )


@pytest.mark.parametrize(
    "text", ["a\0b", "a\ud83d", "\udf78 b", "\ud83d \udf78", "\uffff\U0010ffff"]
)
def test_any_text_survives(text: str) -> None:
    """C24, C25: NUL and lone surrogates are kept, in texts and in metadata, as pure ASCII."""
    message = replace(user(text), metadata={text: text})
    stored = codec.to_json(message)
    assert stored.isascii()
    assert "\0" not in stored
    assert codec.from_json(stored) == message


def test_surrogate_pair_is_one_code_point() -> None:
    """C26: the two escapes of one character are read as that character."""
    stored = json.dumps(plain()).replace('"hi"', '"\\ud83c\\udf78"')
    assert codec.from_json(stored).text == "\U0001f378"


def test_huge_text_survives() -> None:
    """A text of 10 MB is kept whole."""
    text = "0123456789" * 1_000_000
    assert again(user(text)).text == text


def test_bytes_of_media_survive() -> None:
    """C54: every byte value comes back."""
    media = Media(media_type="image/png", data=bytes(range(256)))
    assert again(user(media)).parts == (media,)


def test_empty_bytes_survive() -> None:
    """Media of no bytes at all are media still."""
    media = Media(media_type="text/plain", data=b"")
    assert again(user(media)).parts == (media,)


def test_failed_result_stays_failed() -> None:
    """C58: a failed tool result is a failed one after a reload."""
    result = ToolResult(call_id="c", name="t", parts=(Text(text="boom"),), is_error=True)
    assert again(ToolMessage(parts=(result,))).tool_results[0].is_error is True


def test_arguments_are_kept_verbatim() -> None:
    """What a model wrote as arguments is not touched, valid JSON or not."""
    for args in ("", "{", '{"b":1, "a" :2}', "NaN"):
        assert again(assistant(ToolCall(id="c", name="t", args=args))).tool_calls[0].args == args


# --- what a newer version wrote ------------------------------------------------------------------


def test_unknown_fields_are_written_again() -> None:
    """Fields of a newer version stay on the message, its parts and the parts of results."""
    stored = plain(
        role="tool",
        shiny=[1, {"x": None}],
        parts=[
            {
                "kind": "tool_result",
                "name": "t",
                "call_id": "c",
                "is_error": False,
                "new": {"a": 1},
                "parts": [{"kind": "text", "text": "x", "newer": True}],
            }
        ],
    )
    message = codec.from_dict(stored)
    assert message.extra == {"shiny": [1, {"x": None}]}
    assert json.loads(codec.to_json(message)) == stored


def test_unknown_parts_are_written_again() -> None:
    """Parts of an unknown kind stay as they were, in messages and inside results."""
    odd = {"kind": "hologram", "data": {"kind": "text"}, "role": "system", "extra": 1, "parts": []}
    nested = {"kind": "tool_result", "name": "t", "is_error": False, "parts": [odd]}
    stored = plain(role="tool", parts=[odd, nested])
    message = codec.from_dict(stored)
    assert isinstance(message.parts[0], Opaque)
    assert json.loads(codec.to_json(message)) == stored


@pytest.mark.parametrize("name", ["extra", "__class__", "parts ", "", "\ud83d", "self", "0"])
def test_hostile_names_are_only_names(name: str) -> None:
    """Any name may be an unknown field's or a metadata key."""
    stored = plain(metadata={name: 1}) | {name: {"deep": name}}
    assert json.loads(codec.to_json(codec.from_dict(stored))) == stored


@pytest.mark.parametrize("name", ["role", "id", "metadata", "created_at", "parts"])
def test_extra_cannot_replace_a_field(name: str) -> None:
    """An extra field with the name of a field is refused before anything is written."""
    with pytest.raises(InvalidValueError, match=f"extra holds '{name}'"):
        codec.to_json(replace(user("q"), extra={name: "forged"}))


def test_extra_of_a_part_cannot_replace_a_field() -> None:
    """The same holds for parts, also for a field that is unset."""
    with pytest.raises(InvalidValueError, match="extra holds 'url'"):
        codec.to_json(user(Media(media_type="a/b", data=b"x", extra={"url": "https://evil"})))


# --- times ---------------------------------------------------------------------------------------


def test_times_are_kept_in_utc() -> None:
    """C31: a time of another zone is the same moment, written in UTC."""
    there = MOMENT.astimezone(timezone(timedelta(hours=-5)))
    message = replace(user("q"), created_at=there)
    assert json.loads(codec.to_json(message))["created_at"] == "2026-01-02T03:04:05.678901+00:00"
    assert again(message).created_at == MOMENT
    assert again(message).created_at.utcoffset() == timedelta(0)


def test_times_do_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """C31: the machine's own time zone changes nothing."""
    monkeypatch.setitem(os.environ, "TZ", "America/New_York")
    time.tzset()
    try:
        assert again(replace(user("q"), created_at=MOMENT)).created_at == MOMENT
        with pytest.raises(StoreError, match="created_at"):
            codec.from_dict(plain(created_at="2026-01-02T03:04:05"))
    finally:
        monkeypatch.undo()
        time.tzset()


# --- what cannot be written ----------------------------------------------------------------------


@dataclass
class Point:
    x: int = 1


class Pet(BaseModel):
    name: str = "Rex"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "float"),
        (float("inf"), "float"),
        (object(), "object"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (MOMENT, "datetime"),
        (Point(), "Point"),
        (Pet(), "Pet"),
        ({1: "a"}, "int"),
    ],
)
def test_foreign_objects_are_refused_by_name(value: object, named: str) -> None:
    """C54, C55: what JSON has not is refused, with its type and without its value."""
    message = replace(user("q"), metadata={"deep": [value]})
    with pytest.raises(InvalidValueError, match=named) as caught:
        codec.to_json(message)
    assert f"The user message {message.id!r} cannot be written as JSON" in str(caught.value)
    part = Text(text="q", provider={"deep": value})
    with pytest.raises(InvalidValueError, match=named):
        codec.to_json(user(part))
    with pytest.raises(InvalidValueError, match=named):
        codec.to_json(ToolMessage(parts=(ToolResult(name="t", parts=(part,)),)))


def test_dict_subclass_is_written_as_a_dict() -> None:
    """C55: a Counter comes back as the dict that it equals."""
    message = replace(user("q"), metadata={"n": Counter("aab")})
    assert again(message).metadata == {"n": {"a": 2, "b": 1}}


def test_field_of_the_wrong_type_is_refused() -> None:
    """What could be written but not read again is refused, without the value."""
    wrong: AssistantMessage = replace(assistant("a"), usage=Usage(input_tokens="secret"))  # pyright: ignore
    with pytest.raises(InvalidValueError, match="input_tokens is of type str") as caught:
        codec.to_json(wrong)
    assert "secret" not in str(caught.value)


def test_endless_metadata_is_refused() -> None:
    """A mapping that holds itself, or is too deep, is an error of ours."""
    circle: dict[str, object] = {}
    circle["again"] = circle
    with pytest.raises(InvalidValueError, match="cannot be written as JSON"):
        codec.to_json(replace(user("q"), metadata=circle))


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        "[]",
        "null",
        "{}",
        '{"role": "robot"}',
        '{"role": []}',
        '{"role": "user"}',
        json.dumps(plain(parts="hi")),
        json.dumps(plain(parts=[1])),
        json.dumps(plain(parts=[{"text": "no kind"}])),
        json.dumps(plain(parts=[{"kind": "text"}])),
        json.dumps(plain(parts=[{"kind": "media", "media_type": "a/b", "data": "?"}])),
        json.dumps(plain(parts=[{"kind": "media", "media_type": "a/b"}])),
        json.dumps(plain(parts=[{"kind": "tool_call", "name": "t", "args": {}}])),
        json.dumps(plain(created_at="0001-01-01T00:00:00+01:00")),
        json.dumps(plain(created_at="yesterday")),
        json.dumps(plain(metadata=[])),
        json.dumps(plain(id=7)),
        "[" * 100_000,
        '{"role": "user", "parts": ' + "[" * 100_000,
    ],
)
def test_damage_is_one_sentence(text: str) -> None:
    """Whatever is wrong with a row is a `StoreError` of one line."""
    with pytest.raises(StoreError, match="stored") as caught:
        codec.from_json(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(0, 2**32), st.data())
def test_every_cut_row_is_damage(seed: int, data: st.DataObject) -> None:
    """A row that was cut or changed by one character is read, or is a `StoreError`."""
    for message in random_history(seed, turns=1):
        text = codec.to_json(message)
        at = data.draw(st.integers(0, len(text) - 1))
        with pytest.raises(StoreError):
            codec.from_json(text[:at])
        with suppress(StoreError):
            codec.from_json(text[:at] + "9" + text[at + 1 :])


def test_deep_rows_are_damage() -> None:
    """A row nested beyond what Python follows is a `StoreError`, as a text and as a dict."""
    part: dict[str, object] = {"kind": "text", "text": "x"}
    for _ in range(2000):
        part = {"kind": "tool_result", "name": "t", "parts": [part]}
    with pytest.raises(StoreError, match="nested too deeply"):
        codec.from_dict(plain(role="tool", parts=[part]))
    with pytest.raises(StoreError, match="nested too deeply"):
        codec.part_from_dict(part)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 2**32).map(random_history))
def test_parts_alone_are_exact(history: list[Message]) -> None:
    """A part alone is written as inside its message, and read back as it was."""
    for message in history:
        parts = codec.to_dict(message)["parts"]
        assert [codec.flat(part) for part in message.parts] == parts
        assert (
            tuple(codec.part_from_dict(codec.flat(part)) for part in message.parts) == message.parts
        )


@pytest.mark.parametrize("stored", [{}, {"kind": "text"}, {"kind": "media"}, {"kind": 7}])
def test_damaged_parts(stored: dict[str, object]) -> None:
    """What is no part's object is a `StoreError` that says of which kind."""
    with pytest.raises(StoreError, match="A stored part of kind"):
        codec.part_from_dict(stored)
