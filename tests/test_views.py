"""The valid view and the window, over generated histories and case by case."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import codec
from tenure.errors import InvalidValueError
from tenure.messages import (
    AssistantMessage,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
)
from tenure.saying import assistant, system, tool_result, user
from tenure.testing.histories import random_history
from tenure.views import UNANSWERED, paired_results, valid_view, with_call_ids
from tenure.windows import window

OWN = SystemMessage(parts=(Text(text="You are tenure."),), id="own")
histories = st.integers(0, 2**32).map(random_history)
many = settings(deadline=None, derandomize=True, max_examples=150)


def call(call_id: str | None, name: str = "search") -> ToolCall:
    return ToolCall(id=call_id, name=name)


def result(call_id: str | None, text: str = "found", name: str = "search") -> ToolResult:
    return ToolResult(call_id=call_id, name=name, parts=(Text(text=text),))


def results(*parts: Part) -> ToolMessage:
    return ToolMessage(parts=parts)


def texts(messages: list[Message]) -> list[str]:
    """What results and words a list of messages holds, in order."""
    found: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                found.append(f"call {part.id or part.name}")
            elif isinstance(part, (Text, ToolResult)):
                found.append(part.text)
    return found


def assert_valid(view: list[Message]) -> None:
    """Check every promise of a view that can be checked without the history it was made of."""
    seen: list[str | None] = []
    directly_behind = 0
    last_turn = max((i for i, m in enumerate(view) if m.role != "tool"), default=-1)
    for index, message in enumerate(view):
        if not isinstance(message, AssistantMessage):
            continue
        behind: list[ToolResult] = []
        for later in view[index + 1 :]:
            if not isinstance(later, ToolMessage):
                break
            behind.extend(later.tool_results)
        calls = [part.id for part in message.tool_calls]
        answered = [part.call_id for part in behind]
        assert len(answered) == len(set(answered)), "one call has two results"
        if index == last_turn:
            assert set(answered) <= set(calls)
        else:
            assert set(answered) == set(calls)
        seen += calls
        directly_behind += len(behind)
    assert None not in seen
    assert len(seen) == len(set(seen)), "two calls have one id"
    here = [r for m in view if isinstance(m, ToolMessage) for r in m.tool_results]
    assert {r.call_id for r in here} <= set(seen), "a result without its call"
    assert len(here) == directly_behind, "a result that does not follow its turn"


def slow_view(history: list[Message], own: SystemMessage) -> list[Message]:
    """A view by the rules, read one after the other, however often that looks at everything."""
    now = next((m for m in history if isinstance(m, SystemMessage) and m.id == own.id), own)
    copies = [
        m for m in history if isinstance(m, SystemMessage) and m.parts in (own.parts, now.parts)
    ]
    others = [m for m in history if m.id != own.id and not any(m is copy for copy in copies)]
    pairs = paired_results([now, *others])
    messages = with_call_ids([now, *others])

    def turn_of(index: int, position: int) -> int | None:
        return pairs[index, position][0] if (index, position) in pairs else None

    turns = [i for i, m in enumerate(messages) if not isinstance(m, ToolMessage)]
    view: list[Message] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            places = [turn_of(index, n) for n in range(len(message.parts))]
            words = tuple(p for p in message.parts if not isinstance(p, ToolResult))
            if words and places.count(None) == len(places):
                view.append(replace(message, parts=words))
            continue
        if not isinstance(message, AssistantMessage):
            view.append(message)
            continue
        parts = list(message.parts)
        while parts and isinstance(parts[-1], Reasoning):
            del parts[-1]
        if not parts:
            continue
        view.append(replace(message, parts=tuple(parts)))
        for place, other in enumerate(messages):
            if not isinstance(other, ToolMessage):
                continue
            owners = [turn_of(place, n) for n in range(len(other.parts))]
            first = min((t for t in owners if t is not None), default=None)
            taken = tuple(
                part
                for part, owner in zip(other.parts, owners, strict=True)
                if owner == index or (first == index and not isinstance(part, ToolResult))
            )
            if index in owners:
                view.append(replace(other, parts=taken))
        open_calls = [
            part
            for n, part in enumerate(message.parts)
            if isinstance(part, ToolCall) and (index, n) not in pairs.values()
        ]
        if open_calls and index != turns[-1]:
            view.append(
                results(
                    *(
                        ToolResult(
                            call_id=c.id, name=c.name, parts=(Text(text=UNANSWERED),), is_error=True
                        )
                        for c in open_calls
                    )
                )
            )
    return view


# --- properties ----------------------------------------------------------------------------------


@many
@given(histories)
def test_pairs_of_every_window(history: list[Message]) -> None:
    """C01, C03, C05: no window of any size shows a model an orphan result or an unanswered call."""
    for size in range(len(history) + 1):
        cut = window(history, size)
        assert len(cut) <= size
        assert_valid(valid_view(cut, system_prompt=OWN))
        assert_valid(valid_view(cut))


@many
@given(histories)
def test_a_view_is_what_the_rules_say(history: list[Message]) -> None:
    """Promise 2: the view equals one that is made slowly, rule by rule."""
    assert valid_view(history, system_prompt=OWN) == slow_view(history, OWN)


@many
@given(histories)
def test_window_never_starts_with_a_result(history: list[Message]) -> None:
    """C01: in a cut window every result has its call before it, so none is at its start."""
    for size in range(len(history)):
        cut = window(history, size)
        pairs = paired_results(cut)
        places = [
            (index, position)
            for index, message in enumerate(cut)
            for position, part in enumerate(message.parts)
            if isinstance(part, ToolResult)
        ]
        assert set(pairs) == set(places)
        assert all(pairs[place] < place for place in places)
        assert not cut or not cut[0].tool_results


@many
@given(histories)
def test_window_keeps_what_is_not_a_result(history: list[Message]) -> None:
    """A window cuts results of tool messages and nothing else: other parts stay, in order."""
    for size in range(len(history) + 1):
        cut = window(history, size)
        there = [p for m in cut for p in m.parts if not isinstance(p, ToolResult)]
        last = history[len(history) - size :]
        assert there == [p for m in last for p in m.parts if not isinstance(p, ToolResult)]


@many
@given(histories)
def test_view_is_idempotent(history: list[Message]) -> None:
    """The view of a view is that view, down to the ids."""
    for own in (None, OWN):
        view = valid_view(history, system_prompt=own)
        again = valid_view(view, system_prompt=own)
        assert [codec.to_json(m) for m in again] == [codec.to_json(m) for m in view]


@many
@given(histories)
def test_view_is_the_same_after_reload(history: list[Message]) -> None:
    """A model is shown the same ids after a restart."""
    loaded = [codec.from_json(codec.to_json(message)) for message in history]
    assert valid_view(loaded, system_prompt=OWN) == valid_view(history, system_prompt=OWN)


@many
@given(histories)
def test_view_edits_nothing(history: list[Message]) -> None:
    """What is stored stays as it is."""
    before = [codec.to_json(message) for message in history]
    valid_view(history, system_prompt=OWN)
    window(history, len(history) // 2)
    assert [codec.to_json(message) for message in history] == before


@many
@given(histories)
def test_view_keeps_everything_but_results(history: list[Message]) -> None:
    """C06: users, systems and whole turns stay in order, reasoning with the calls it led to."""

    def rest(messages: list[Message]) -> list[tuple[str, object]]:
        return [
            (m.id, replace(p, id=None) if isinstance(p, ToolCall) else p)
            for m in messages
            if not isinstance(m, ToolMessage)
            for n, p in enumerate(m.parts)
            if any(not isinstance(later, Reasoning) for later in m.parts[n:])
        ]

    assert rest(valid_view(history)) == rest(history)


@many
@given(histories)
def test_view_keeps_words_of_tool_messages(history: list[Message]) -> None:
    """Words and media of tool messages are never lost and never doubled."""

    def words(messages: list[Message]) -> list[str]:
        return sorted(
            repr(p)
            for m in messages
            if isinstance(m, ToolMessage)
            for p in m.parts
            if not isinstance(p, ToolResult)
        )

    assert words(valid_view(history)) == words(history)


@many
@given(histories, st.integers(0, 2**16))
def test_own_system_prompt_is_once_and_first(history: list[Message], at: int) -> None:
    """K2: the agent's system prompt is first and once, be it missing, doubled or rewritten."""
    others = [m for m in history if isinstance(m, SystemMessage)]
    rewritten = replace(OWN, parts=(Text(text="You are new."),))
    copy = replace(OWN, id="copy")
    for inside in ([], [OWN], [OWN, OWN], [copy, OWN], [copy], [rewritten], [rewritten, copy]):
        messages = list(history)
        for message in reversed(inside):
            messages.insert(at % (len(messages) + 1), message)
        view = valid_view(messages, system_prompt=OWN)
        expected = rewritten if rewritten in inside else OWN
        assert view[0] == expected
        assert view[0].id == "own"
        assert [m for m in view[1:] if isinstance(m, SystemMessage)] == others


@many
@given(histories)
def test_made_ids_fit_every_provider(history: list[Message]) -> None:
    """A made call id has at most 40 letters, digits, underscores or hyphens."""
    own = {c.id for m in history for c in m.tool_calls}
    for message in valid_view(history):
        for part in message.tool_calls:
            if part.id not in own:
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", part.id or "")


# --- the view, case by case ----------------------------------------------------------------------


def test_late_result_moves_to_its_turn() -> None:
    """A result that came after the user's next words is shown right behind its call."""
    view = valid_view([assistant(call("c1")), user("well?"), results(result("c1"))])
    assert texts(view) == ["call c1", "found", "well?"]


def test_open_call_before_a_user_message_is_answered() -> None:
    """C04: a trailing open call that a crash left is answered when the conversation goes on."""
    turn = assistant("let me look", call("c1"), call("c2"))
    view = valid_view([turn, results(result("c2")), user("and?")])
    assert texts(view) == ["let me look", "call c1", "call c2", "found", UNANSWERED, "and?"]
    made = view[2].tool_results[0]
    assert (made.call_id, made.name, made.is_error) == ("c1", "search", True)


def test_made_answer_is_the_same_every_time() -> None:
    """The answer to an interrupted call has the id and time that its turn gives it."""
    history = [assistant(call("c1")), user("and?")]
    first, second = valid_view(history)[1], valid_view(history)[1]
    assert (first.id, first.created_at) == (second.id, history[0].created_at)


def test_open_calls_of_the_last_turn_stay_open() -> None:
    """Calls that are being executed are not answered, also when some results are there."""
    history = [user("hi"), assistant(call("c1"), call("c2")), results(result("c1"))]
    assert valid_view(history) == history


def test_duplicate_result_is_left_out() -> None:
    """One call takes one result; the first."""
    view = valid_view([assistant(call("c1")), results(result("c1", "1"), result("c1", "2"))])
    assert texts(view) == ["call c1", "1"]


def test_same_id_in_two_turns_is_told_apart() -> None:
    """A server that counts its calls from 0 again gets ids that no two calls share."""
    history = [
        assistant(call("call_0")),
        results(result("call_0", "first")),
        assistant(call("call_0")),
        results(result("call_0", "second")),
    ]
    view = valid_view(history)
    assert_valid(view)
    assert [m.text or m.tool_results[0].text for m in view if m.role == "tool"] == [
        "first",
        "second",
    ]
    assert view[0].tool_calls[0].id == "call_0"
    assert view[2].tool_calls[0].id == view[3].tool_results[0].call_id != "call_0"


def test_same_id_twice_in_one_turn_is_told_apart() -> None:
    """Two calls of one turn with one id are two calls, answered in order."""
    view = valid_view(
        [assistant(call("c"), call("c")), results(result("c", "1"), result("c", "2"))]
    )
    first, second = view[0].tool_calls
    assert first.id == "c"
    assert second.id != "c"
    assert [(r.call_id, r.text) for r in view[1].tool_results] == [("c", "1"), (second.id, "2")]


def test_stray_result_does_not_answer_a_renamed_neighbour() -> None:
    """A surplus result of an id that two turns share answers neither."""
    history = [
        assistant(call("c")),
        user("go on"),
        assistant(call("c")),
        results(result("c", "second"), result("c", "surplus")),
    ]
    view = valid_view(history)
    assert_valid(view)
    assert "surplus" not in texts(view)
    assert view[1].tool_results[0].text == UNANSWERED


def test_results_of_two_turns_in_one_message_are_dealt_out() -> None:
    """Each result goes to its own turn, and words that came with them to the first."""
    mixed = results(result("c2", "2"), Text(text="note"), result("c1", "1"))
    view = valid_view([assistant(call("c1")), assistant(call("c2")), mixed])
    assert texts(view) == ["call c1", "note", "1", "call c2", "2"]


def test_call_ids_depend_on_message_and_place_only() -> None:
    """A made id is the same whatever stands before the message, and another for another place."""
    turn = assistant(call(None), call(None))
    alone = with_call_ids([turn])[0].tool_calls
    later = with_call_ids([user("x"), assistant(call(None)), turn])[2].tool_calls
    assert alone == later
    assert alone[0].id != alone[1].id


def test_call_ids_are_unique_for_a_doubled_message() -> None:
    """A message that is there twice gives four different ids to its two calls without id."""
    turn = assistant(call(None), call(None))
    ids = [c.id for m in with_call_ids([turn, turn]) for c in m.tool_calls]
    assert len(set(ids)) == 4


def test_empty_id_is_none() -> None:
    """A call whose server gave it an empty id gets one, and so does its result."""
    view = valid_view([assistant(call("")), results(result(""))])
    assert view[0].tool_calls[0].id == view[1].tool_results[0].call_id
    assert view[0].tool_calls[0].id


def test_reasoning_stays_with_its_call() -> None:
    """C06: a window never parts the reasoning from the call it led to."""
    history = [
        user("q"),
        AssistantMessage(parts=(Reasoning(text="r1"), call("c1"))),
        results(result("c1")),
    ]
    for size in range(4):
        kept = {type(p) for m in valid_view(window(history, size)) for p in m.parts}
        assert (Reasoning in kept) == (ToolCall in kept)


def test_system_prompt_rewritten_twice_is_there_once() -> None:
    """Of several messages with the system prompt's id only one is shown."""
    one = replace(OWN, parts=(Text(text="one"),))
    two = replace(OWN, parts=(Text(text="two"),))
    view = valid_view([user("q"), one, two], system_prompt=OWN)
    assert [m.text for m in view] == ["one", "q"]


def test_any_message_id_gives_call_ids() -> None:
    """C24: a call id is made of any message id, a lone surrogate in it too."""
    turn = replace(assistant(call(None)), id="m\ud83d")
    assert re.fullmatch("call_[0-9a-f]{24}", with_call_ids([turn])[0].tool_calls[0].id or "")


def test_copies_of_a_rewritten_system_prompt_go() -> None:
    """The rewritten system prompt is there once, like the original."""
    rewritten = replace(OWN, parts=(Text(text="new"),))
    copy = replace(rewritten, id="copy")
    view = valid_view([rewritten, user("q"), copy, OWN], system_prompt=OWN)
    assert [m.text for m in view] == ["new", "q"]


# --- windows, case by case (spec D8, "Pairs") ----------------------------------------------------


def test_window_keeps_a_call_with_its_result() -> None:
    """A call inside the window is kept with its result."""
    history = [user("q"), assistant(call("c1")), results(result("c1")), assistant("a")]
    assert window(history, 3) == history[1:]


def test_window_drops_a_result_without_its_call() -> None:
    """C01: a result whose call is outside goes, and the window has fewer messages."""
    history = [system("s"), user("q"), assistant(call("c1")), results(result("c1")), assistant("a")]
    assert texts(window(history, 2)) == ["a"]
    assert texts(window(history, 3)) == ["call c1", "found", "a"]


def test_window_drops_all_results_of_parallel_calls() -> None:
    """Both results of two parallel calls outside the window go."""
    turn = assistant(call("c1"), call("c2"))
    history = [turn, results(result("c1")), results(result("c2")), user("next")]
    assert texts(window(history, 3)) == ["next"]


def test_window_keeps_the_words_of_a_mixed_message() -> None:
    """A tool message that loses its results keeps its text, its id and its metadata."""
    mixed = replace(results(result("c1"), Text(text="note")), metadata={"k": 1})
    (kept,) = window([assistant(call("c1")), mixed], 1)
    assert kept == replace(mixed, parts=(Text(text="note"),))
    assert kept.id == mixed.id


def test_window_matches_anonymous_calls_by_tool() -> None:
    """A result without id belongs to a call of its tool without id."""
    history = [user("q"), assistant(call(None, "add")), results(result(None, "3", "add"))]
    assert window(history, 2) == history[1:]
    history[1] = assistant(call(None, "other"))
    assert window(history, 2) == history[1:2]


def test_window_of_the_whole_conversation_changes_nothing() -> None:
    """A window at least as large as the conversation is the conversation, orphans included."""
    history = [results(result("nobody")), user("q")]
    assert window(history, 2) == window(history, 3) == history


def test_window_separates_ids_from_names() -> None:
    """The id "search" never matches the anonymous tool "search"."""
    history = [user("q"), assistant(call(None, "search")), results(result("search"))]
    assert texts(window(history, 2)) == ["call search"]


def test_window_counts_anonymous_calls_outside() -> None:
    """Of two anonymous calls around the border the first result belongs to the first, outside."""
    history = [
        assistant(call(None)),
        assistant(call(None)),
        results(result(None, "1")),
        results(result(None, "2")),
    ]
    assert texts(window(history, 3)) == ["call search", "2"]


def test_window_gives_a_call_one_result() -> None:
    """One call cannot satisfy two results."""
    turn = assistant(call("c1"))
    history = [user("q"), turn, results(result("c1", "1")), results(result("c1", "2"))]
    assert texts(window(history, 3)) == ["call c1", "1"]


def test_window_drops_a_result_before_its_call() -> None:
    """A result never belongs to a later call; the rest of its message stays, metadata too."""
    early = replace(results(result("c1"), Text(text="note")), metadata={"k": 1})
    cut = window([user("q"), early, assistant(call("c1"))], 2)
    assert texts(cut) == ["note", "call c1"]
    assert cut[0].metadata == {"k": 1}


def test_window_of_nothing() -> None:
    """A window of 0 is empty, a negative one is refused."""
    assert window([user("q")], 0) == []
    with pytest.raises(InvalidValueError, match="A window of -1 messages cannot be"):
        window([user("q")], -1)


def test_last_group_stays_whole() -> None:
    """C03: the last result is kept with its call or not at all."""
    history = [
        system("s"),
        user("q"),
        assistant(call("tc1")),
        tool_result("tc1", "t1", name="search"),
        assistant(call("tc2")),
        tool_result("tc2", "t2", name="search"),
        user("next"),
    ]
    assert texts(window(history, 2)) == ["next"]
    assert texts(window(history, 3)) == ["call tc2", "t2", "next"]
