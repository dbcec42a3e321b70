"""Prompts: where tool results go, what is refused, and params."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import InvalidValueError, PromptError
from tenure.messages import (
    AssistantMessage,
    Message,
    Part,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
)
from tenure.prompt import LLMParams, NamedTool, Prompt
from tenure.saying import assistant, tool_result, user
from tenure.testing.histories import random_history
from tenure.views import paired_results


def call(call_id: str | None, name: str = "search") -> ToolCall:
    return ToolCall(id=call_id, name=name)


def results(*parts: Part, id: str = "r") -> ToolMessage:  # noqa: A002 # the field's name
    return ToolMessage(parts=parts, id=id)


def result(call_id: str | None, text: str = "", name: str = "search") -> ToolResult:
    return ToolResult(call_id=call_id, name=name, parts=(Text(text=text),) if text else ())


def test_result_goes_behind_its_call() -> None:
    """A result is put behind the turn that it answers, and not at the end."""
    turn, words = assistant(call("c1")), user("hello?")
    answer = tool_result("c1", "found", name="search")
    prompt = Prompt(messages=(turn, words)).appended(answer)
    assert prompt.messages == (turn, answer, words)


def test_result_goes_to_the_last_call_of_its_id() -> None:
    """When two turns use one id, the later one gets the result."""
    first, second = assistant("1", call("c")), assistant("2", call("c"))
    answer = tool_result("c", "found", name="search")
    assert Prompt().appended(first, second, user("q"), answer).messages[:3] == (
        first,
        second,
        answer,
    )


def test_unknown_call_is_refused() -> None:
    """The text is Koog's, with the id."""
    with pytest.raises(PromptError) as caught:
        Prompt(messages=(assistant(call("c1")),)).appended(results(result("c2")))
    assert str(caught.value) == "Failed to add tool result: no call message with id c2"


def test_unknown_anonymous_call_is_refused() -> None:
    """A result without id needs an open call of its tool without id."""
    with pytest.raises(PromptError) as caught:
        Prompt(messages=(assistant(call("c1")),)).appended(results(result(None)))
    assert str(caught.value) == "Failed to add tool result: no call message with id None"


def test_second_result_of_a_call_is_refused() -> None:
    """A call has one result; the message says so."""
    prompt = Prompt(messages=(assistant(call("c1")),)).appended(results(result("c1")))
    with pytest.raises(PromptError) as caught:
        prompt.appended(results(result("c1")))
    expected = "Failed to add tool result: the call with id c1 has a result already"
    assert str(caught.value) == expected


def test_second_result_in_one_message_is_refused() -> None:
    """Two results of one call in one tool message are one too many."""
    with pytest.raises(PromptError, match="has a result already"):
        Prompt(messages=(assistant(call("c1")),)).appended(results(result("c1"), result("c1")))


def test_results_of_several_turns_are_dealt_out() -> None:
    """One message with results of two turns becomes one message behind each, with ids of their own."""
    one, two = assistant("1", call("c1")), assistant("2", call("c2"))
    both = results(result("c2"), result("c1"), Text(text="note"))
    messages = Prompt(messages=(one, two)).appended(both).messages
    assert [m.parts for m in messages] == [
        one.parts,
        (result("c1"),),
        two.parts,
        (result("c2"),),
        (Text(text="note"),),
    ]
    ids = [m.id for m in messages]
    assert len(set(ids)) == 5


def test_results_of_one_turn_stay_one_message() -> None:
    """The message with all results of a turn is kept as it is, words included."""
    both = results(result("c2"), Text(text="note"), result("c1"))
    prompt = Prompt(messages=(assistant(call("c1"), call("c2")), user("q"))).appended(both)
    assert prompt.messages[1] is both


def test_results_do_not_change_messages_that_are_there() -> None:
    """A second result of a turn is a message of its own, behind the first: what has an id stays."""
    first, second = results(result("c1"), id="a"), results(result("c2"), id="b")
    prompt = Prompt(messages=(assistant(call("c1"), call("c2")), user("q")))
    messages = prompt.appended(first, second).messages
    assert messages[1] is first
    assert messages[2] is second


def test_anonymous_results_go_to_the_oldest_open_call() -> None:
    """Without ids, results answer the calls of their tool in order."""
    one, two = assistant("1", call(None)), assistant("2", call(None))
    prompt = Prompt(messages=(one, two))
    prompt = prompt.appended(results(result(None, "first"), id="a"))
    prompt = prompt.appended(results(result(None, "second"), id="b"))
    assert [m.id for m in prompt.messages] == [one.id, "a", two.id, "b"]


def test_lenient_append_puts_strays_at_the_end() -> None:
    """With strict=False a stray result is kept at the end, as it is, with its words."""
    stray = results(result("unknown"), Text(text="note"))
    turn = assistant(call("c1"))
    prompt = Prompt(messages=(turn, user("q"))).appended(stray, strict=False)
    assert prompt.messages[-1] is stray


def test_lenient_append_still_places_what_has_a_call() -> None:
    """With strict=False only the strays of a message go to the end."""
    mixed = results(result("c1"), result("unknown"))
    prompt = Prompt(messages=(assistant(call("c1")), user("q"))).appended(mixed, strict=False)
    assert [m.parts for m in prompt.messages[1:]] == [
        (result("c1"),),
        (Text(text="q"),),
        (result("unknown"),),
    ]


def test_append_is_pure() -> None:
    """Appending returns another prompt, and a refused append changes nothing."""
    prompt = Prompt(id="p", messages=(assistant(call("c1")),), params=LLMParams(temperature=0.5))
    before = prompt.messages
    longer = prompt.appended(user("q"), results(result("c1")))
    with pytest.raises(PromptError):
        prompt.appended(user("q"), results(result("c9")))
    assert prompt.messages is before
    assert (longer.id, longer.params) == ("p", LLMParams(temperature=0.5))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(0, 2**32).map(random_history))
def test_lenient_append_loses_nothing(history: list[Message]) -> None:
    """Whatever is appended in whatever order, each part is there once, and pairs stay pairs."""

    def parts(messages: list[Message] | tuple[Message, ...]) -> list[str]:
        return sorted(repr(p) for m in messages for p in m.parts)

    prompt = Prompt()
    for message in history:
        prompt = prompt.appended(message, strict=False)
    assert parts(prompt.messages) == parts(history)
    assert Prompt().appended(*history, strict=False).messages == prompt.messages
    assert len(paired_results(prompt.messages)) == len(paired_results(history))


def test_prompt_takes_any_sequence() -> None:
    """Messages may be given as a list."""
    message = user("q")
    assert Prompt(messages=[message]).messages == (message,)


@pytest.mark.parametrize("messages", ["hi", ["hi"], [user("hi"), None]])
def test_what_is_no_message_is_refused(messages: Any) -> None:
    """A prompt holds messages only, however it is made."""
    for make in (lambda: Prompt(messages=messages), lambda: Prompt().copy(messages=messages)):
        with pytest.raises(InvalidValueError, match="is no message"):
            make()


def test_copy_keeps_what_is_not_given() -> None:
    """A copy has the id, and the messages or params that were not replaced."""
    prompt = Prompt(id="p", messages=(user("q"),), params=LLMParams(max_tokens=5))
    assert prompt.copy(messages=[]) == Prompt(id="p", params=LLMParams(max_tokens=5))
    assert prompt.copy(params=LLMParams()) == Prompt(id="p", messages=(user("q"),))


def test_latest_token_usage_is_of_the_last_reply_that_has_one() -> None:
    """Counts hold the whole prompt, so they are not added up."""
    one = AssistantMessage(parts=(Text(text="1"),), usage=Usage(input_tokens=10, output_tokens=1))
    two = AssistantMessage(parts=(Text(text="2"),), usage=Usage(input_tokens=20, output_tokens=2))
    assert Prompt(messages=(one, two, assistant("3"), user("q"))).latest_token_usage == 22
    assert Prompt(messages=(user("q"),)).latest_token_usage == 0


def test_params_take_defaults_for_what_is_unset() -> None:
    """`with_defaults` fills every unset field, also zero stays set, and merges `additional`."""
    mine = LLMParams(temperature=0, additional={"top_p": 0.9, "seed": 1})
    other = LLMParams(
        temperature=1,
        max_tokens=7,
        tool_choice=NamedTool("add"),
        user="u",
        additional={"seed": 2, "stop": ["x"]},
    )
    assert mine.with_defaults(other) == LLMParams(
        temperature=0,
        max_tokens=7,
        tool_choice=NamedTool("add"),
        user="u",
        additional={"top_p": 0.9, "seed": 1, "stop": ["x"]},
    )


def test_params_out_of_range_are_refused() -> None:
    """A negative temperature and a reply of no tokens are refused with the value."""
    with pytest.raises(InvalidValueError, match="temperature=-1"):
        LLMParams(temperature=-1)
    with pytest.raises(InvalidValueError, match="max_tokens=0"):
        LLMParams(max_tokens=0)
