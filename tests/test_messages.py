"""Messages and parts as values."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import TypeAdapter

from tenure import codec
from tenure.errors import InvalidValueError, PromptError
from tenure.messages import (
    AssistantMessage,
    Media,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tenure.saying import assistant, system, tool_result, user
from tenure.testing import ManualClock

PICTURE = Media(media_type="image/png", data=b"png")
CALL = ToolCall(id="c1", name="search", args='{"q": 1}')


def test_constructors_make_texts_of_strings() -> None:
    """Strings are texts, and parts stay as they are, in order."""
    assert system("be kind").parts == (Text(text="be kind"),)
    assert user("look:", PICTURE, "ok?").parts == (Text(text="look:"), PICTURE, Text(text="ok?"))
    thought = Reasoning(text="hm")
    assert assistant(thought, "well", CALL).parts == (thought, Text(text="well"), CALL)


def test_constructors_take_a_clock() -> None:
    """Ids and times come from the clock that is given."""
    clock = ManualClock()
    made = [system("s", clock=clock), user("u", clock=clock), assistant("a", clock=clock)]
    made.append(tool_result(CALL, "r", clock=clock))
    assert [m.id for m in made] == ["id-000001", "id-000002", "id-000003", "id-000004"]
    assert {m.created_at for m in made} == {clock.now()}


def test_empty_messages_are_refused() -> None:
    """A user or assistant message without content is refused with its role."""
    with pytest.raises(PromptError, match="This user message is empty"):
        user()
    with pytest.raises(PromptError, match="This assistant message is empty"):
        assistant()


@pytest.mark.parametrize(
    "make",
    [
        lambda: user(123),
        lambda: user(None),
        lambda: user(["a"]),
        lambda: user(CALL),
        lambda: assistant(ToolResult(name="t")),
        lambda: system(PICTURE),
        lambda: tool_result("c", [CALL], name="t"),
        lambda: UserMessage(parts="abc"),
        lambda: ToolMessage(parts=(CALL,)),
        lambda: Text(text=1),
        lambda: Reasoning(text=None),
        lambda: ToolCall(name="t", args={"q": 1}),
        lambda: ToolCall(name=None),
        lambda: ToolResult(name="t", parts=["text"]),
    ],
)
def test_wrong_content_is_refused_by_type(make: object) -> None:
    """What a message cannot hold is refused where it is made, not when it is stored or read."""
    with pytest.raises(
        InvalidValueError, match=r"type (int|NoneType|list|ToolCall|ToolResult|Media|str|dict)"
    ):
        make()  # pyright: ignore


def test_refusal_of_content_does_not_repeat_it() -> None:
    """An error names types, never what somebody said."""
    with pytest.raises(InvalidValueError) as caught:
        ToolCall(name="t", args={"secret": 1})  # pyright: ignore
    assert str(caught.value) == "ToolCall(args=...) is a text, and not of type dict."


def test_parts_may_be_any_iterable() -> None:
    """Lists and generators of parts become tuples."""
    assert UserMessage(parts=[Text(text="a")]).parts == (Text(text="a"),)  # pyright: ignore
    assert ToolResult(name="t", parts=(Text(text=t) for t in "ab")).text == "a\nb"  # pyright: ignore


def test_equality_ignores_id_and_time() -> None:
    """Two messages are equal when everything but id and time is, and then they have one hash."""
    one, two = user("q"), user("q")
    assert one.id != two.id
    assert one == two
    assert hash(one) == hash(two)
    assert one != user("p")
    assert one != replace(one, metadata={"k": 1})
    assert user("q") != assistant("q")


@pytest.mark.parametrize(
    "change",
    [
        lambda mapping: mapping.__setitem__("k", 1),
        lambda mapping: mapping.setdefault("k", 1),
        lambda mapping: mapping.update(k=1),
        lambda mapping: mapping.__ior__({"k": 1}),
        lambda mapping: mapping.clear() or mapping["k"],
    ],
)
def test_an_empty_mapping_stays_empty(change: Callable[[object], object]) -> None:
    """A mapping that nobody gave is one for all messages, and refuses to be changed, after loading too."""
    loaded = codec.from_json(codec.to_json(assistant("a")))
    for mapping in (
        loaded.metadata,
        loaded.parts[0].extra,  # pyright: ignore
        Usage().details,
        user("q").metadata,
    ):
        with pytest.raises((TypeError, KeyError)):
            change(mapping)
        assert mapping == {}
        assert mapping is user("q").extra


def test_an_empty_mapping_is_like_any_other() -> None:
    """It is equal to `{}`, copies and pickles, is JSON, passes pydantic, and can be added to a dict."""
    message = user("q")
    for same in (
        copy.copy(message),
        copy.deepcopy(message),
        *(pickle.loads(pickle.dumps(message, protocol)) for protocol in range(2, 6)),
        TypeAdapter(UserMessage).validate_python(asdict(message)),
    ):
        assert same == message
        assert (same.id, same.metadata, dict(same.metadata)) == (message.id, {}, {})
    assert copy.deepcopy(message).metadata is message.metadata
    assert pickle.loads(pickle.dumps(message)).metadata is message.metadata
    assert json.dumps(message.metadata) == str(message.metadata) == "{}"
    assert {**message.metadata, "k": 1} == message.metadata | {"k": 1} == {"k": 1}


def test_messages_are_frozen_and_hashable() -> None:
    """Nothing of a message can be set, and messages go into sets, mappings and all."""
    message = replace(
        assistant("a", CALL),
        metadata={"k": []},
        usage=Usage(details={"cached": 1}),
        provider={"p": {}},
    )
    with pytest.raises(FrozenInstanceError):
        message.id = "x"  # pyright: ignore
    with pytest.raises(FrozenInstanceError):
        message.parts[0].text = "x"  # pyright: ignore
    assert len({message, replace(message)}) == 1


def test_text_joins_text_parts_by_newlines() -> None:
    """`.text` and `.content` hold the texts and nothing else."""
    message = user("a", PICTURE, "b")
    assert message.text == message.content == "a\nb"
    assert assistant(CALL).text == ""


def test_tool_helpers() -> None:
    """`.tool_calls`, `.is_tool_call` and `.tool_results` speak of the parts."""
    other = ToolCall(name="add")
    assert assistant("x", CALL, other).tool_calls == (CALL, other)
    assert assistant("x", CALL).is_tool_call
    assert not assistant("x").is_tool_call
    answer = tool_result(CALL, "found")
    assert answer.tool_results == (
        ToolResult(call_id="c1", name="search", parts=(Text(text="found"),)),
    )
    assert answer.text == ""


def test_primary_is_the_first_call_or_the_text() -> None:
    """A reply that calls tools is its first call, another one its text."""
    assert assistant("well", CALL, ToolCall(name="add")).primary == CALL
    assert assistant(Reasoning(text="hm"), "a", "b").primary == "a\nb"


def test_reasoning_is_joined() -> None:
    """`.reasoning` holds the thoughts, joined by newlines, and not the text."""
    message = assistant(Reasoning(text="1"), "text", Reasoning(text="2"))
    assert message.reasoning == "1\n2"
    assert message.text == "text"


def test_tool_result_takes_a_call_or_its_id() -> None:
    """The call names the tool; an id alone needs the name."""
    assert tool_result("c1", "r", name="search") == tool_result(CALL, "r")
    assert tool_result(None, "r", name="t").tool_results[0].call_id is None
    with pytest.raises(PromptError, match="The tool result for call 'c1' needs the tool's name"):
        tool_result("c1", "r")


def test_tool_result_holds_texts_and_media() -> None:
    """The content may be a list of texts and media, and may be an error."""
    (result,) = tool_result(CALL, ["see", PICTURE], is_error=True).tool_results
    assert result.parts == (Text(text="see"), PICTURE)
    assert result.is_error


def test_empty_ids_are_none() -> None:
    """Some servers send an empty id where they mean none."""
    assert ToolCall(id="", name="t").id is None
    assert ToolResult(call_id="", name="t").call_id is None


def test_naive_times_are_refused() -> None:
    """C31: a time without zone is refused, with the value."""
    with pytest.raises(InvalidValueError, match="has no time zone"):
        replace(user("q"), created_at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidValueError, match="has no time zone"):
        replace(user("q"), created_at="2026-01-01")  # pyright: ignore
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    with pytest.raises(InvalidValueError, match="out of range"):
        replace(user("q"), created_at=early)


def test_times_are_utc() -> None:
    """C31: a time of another zone is kept as the same moment in UTC."""
    there = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    kept = replace(user("q"), created_at=there).created_at
    assert kept == there
    assert (kept.hour, kept.tzinfo) == (10, UTC)


def test_media_need_data_or_url() -> None:
    """Exactly one of the two; empty bytes are data."""
    with pytest.raises(InvalidValueError, match="either data= or url="):
        Media(media_type="image/png")
    with pytest.raises(InvalidValueError, match="either data= or url="):
        Media(media_type="image/png", data=b"", url="https://example.org/x.png")
    assert Media(media_type="text/plain", data=b"").data == b""


def test_opaque_is_for_unknown_kinds() -> None:
    """A part that would read back as something else cannot be made."""
    with pytest.raises(InvalidValueError, match=r"Opaque\(kind='text'\)"):
        Opaque(kind="text")
    with pytest.raises(InvalidValueError, match=r"Opaque\(kind='new'\)"):
        Opaque(kind="new", data={"kind": "text"})


def test_usage_adds_up() -> None:
    """Counts are added one by one, the provider's own too."""
    one = Usage(input_tokens=10, output_tokens=2, requests=1, details={"cached": 3})
    two = Usage(input_tokens=1, output_tokens=1, requests=1, details={"cached": 1, "audio": 5})
    total = one + two
    assert total == Usage(
        input_tokens=11, output_tokens=3, requests=2, details={"cached": 4, "audio": 5}
    )
    assert total.total_tokens == 14
    assert one.details == {"cached": 3}


def test_reply_says_where_it_comes_from() -> None:
    """A reply has no usage, finish reason or model unless it is told."""
    message = AssistantMessage(parts=(Text(text="a"),))
    assert (message.usage, message.finish_reason, message.model) == (None, None, None)
