"""Windows by messages and by tokens, budgets, and the marks that keep messages in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_views import OWN, assert_valid

from tenure import (
    BudgetError,
    InvalidValueError,
    Message,
    SystemMessage,
    Text,
    TokenEstimator,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    assistant,
    is_pinned,
    is_summary,
    pinned,
    system,
    token_window,
    tool_result,
    user,
    valid_view,
    window,
)
from tenure.testing.histories import random_history
from tenure.tokens import OVERHEAD
from tenure.views import paired_results
from tenure.windows import WindowOptions, fitted, selection

seeds = st.integers(0, 2**32)
histories = seeds.map(random_history)
many = settings(deadline=None, derandomize=True, max_examples=150)


def chars(message: Message) -> int:
    """A counter that is easy to add up by hand: 4, and one for each character of its texts."""
    return OVERHEAD + sum(len(getattr(part, "text", "")) for part in message.parts)


def names(messages: Sequence[Message]) -> str:
    return " ".join(message.text or "-" for message in messages)


# --- the slow, obviously right reference -----------------------------------------------------------


def reference(messages: list[Message], kept: set[int]) -> list[Message]:
    """The messages at indices, by the definition: no group is torn apart, no result without its call."""
    pairs = paired_results(messages)
    turns = {turn for turn, _ in pairs.values()}
    whole = {
        turn
        for turn in turns
        if {turn} | {i for (i, _), (t, _) in pairs.items() if t == turn} <= kept
    }
    left: list[Message] = []
    for index, message in enumerate(messages):
        if index not in kept or (index in turns and index not in whole):
            continue
        if not isinstance(message, ToolMessage) or not message.tool_results:
            left.append(message)
            continue
        parts = [
            part
            for position, part in enumerate(message.parts)
            if part.kind != "tool_result"
            or ((index, position) in pairs and pairs[index, position][0] in whole)
        ]
        if parts:
            left.append(replace(message, parts=tuple(parts)))
    return left


def ids(messages: Sequence[Message]) -> list[tuple[str, int]]:
    return [(message.id, len(message.parts)) for message in messages]


@many
@given(histories, st.data())
def test_a_selection_is_what_its_definition_says(
    history: list[Message], data: st.DataObject
) -> None:
    """C01, C03: whatever is chosen, each turn is there with all its results or not at all (K1)."""
    kept = set(data.draw(st.lists(st.integers(0, max(len(history) - 1, 0)))))
    chosen = selection(history, kept)
    assert ids(chosen) == ids(reference(history, kept))
    assert_valid(valid_view(chosen, system_prompt=OWN))
    everything = set(range(len(chosen)))
    assert ids(selection(chosen, everything)) == ids(chosen)


@many
@given(histories)
def test_a_window_is_the_end_of_a_history_in_whole_groups(history: list[Message]) -> None:
    """C01: for every size the window is the reference's choice of the last messages."""
    for size in range(len(history)):
        start = len(history) - size
        expected = reference(history, set(range(start, len(history))))
        assert ids(window(history, size)) == ids(expected)


@many
@given(histories, st.integers(0, 400))
def test_a_token_window_is_inside_its_budget(history: list[Message], budget: int) -> None:
    """The last messages of which the budget holds all, in whole groups, and none more than fits."""
    cut = token_window(history, budget, counter=chars)
    if sum(map(chars, history)) <= budget:
        assert cut == history
        return
    assert sum(map(chars, cut)) <= budget
    total, start = 0, len(history)
    while start and total + chars(history[start - 1]) <= budget:
        start -= 1
        total += chars(history[start])
    assert ids(cut) == ids(reference(history, set(range(start, len(history)))))
    assert_valid(valid_view(cut, system_prompt=OWN))


@many
@given(histories, st.integers(1, 600))
def test_a_budget_leaves_out_the_oldest_that_may_go(history: list[Message], budget: int) -> None:
    """What has to stay stays, and before it as much of the end as fits: compared with trying it out."""
    view = valid_view(history, system_prompt=OWN)
    must = {i for i, m in enumerate(view) if isinstance(m, SystemMessage) or is_pinned(m)}
    must |= {*[i for i, m in enumerate(view) if isinstance(m, UserMessage)][-1:]}
    must |= {*[i for i, m in enumerate(view) if is_summary(m)][-1:]}
    must |= {*[i for i, m in enumerate(view) if not isinstance(m, ToolMessage)][-1:]}
    pairs = {(i, turn) for (i, _), (turn, _) in paired_results(view).items()}
    for _ in view:  # until nothing is added: a turn brings its results, and a result its turn
        must |= {one for pair in pairs if must & {*pair} for one in pair}
    best = next(
        (
            must | set(range(start, len(view)))
            for start in range(len(view) + 1)
            if sum(chars(m) for i, m in enumerate(view) if i in must or i >= start) <= budget
        ),
        None,
    )
    if best is None:
        with pytest.raises(BudgetError):
            fitted(view, budget, counter=chars)
    else:
        assert ids(fitted(view, budget, counter=chars)) == ids(reference(view, best))


@many
@given(histories, st.integers(1, 600))
def test_a_budget_leaves_a_valid_view_valid(history: list[Message], budget: int) -> None:
    """Promise 2: a view that is fitted to a budget is inside it, valid, and stays as it is when fitted
    again; or what cannot be left out is named as too much.
    """
    view = valid_view(history, system_prompt=OWN)
    try:
        cut = fitted(view, budget, counter=chars)
    except BudgetError:
        return  # the test above says when
    assert sum(map(chars, cut)) <= budget
    assert_valid(cut)
    assert fitted(cut, budget, counter=chars) == cut
    assert valid_view(cut, system_prompt=OWN) == cut
    assert [m for m in cut if isinstance(m, SystemMessage)] == [
        m for m in view if isinstance(m, SystemMessage)
    ]
    assert [m for m in cut if isinstance(m, UserMessage)][-1:] == [
        m for m in view if isinstance(m, UserMessage)
    ][-1:]


# --- windows, case by case -------------------------------------------------------------------------

TALK = [user("u1"), assistant("a1"), user("u2"), assistant("a2"), user("u3"), assistant("a3")]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(4, "0 1 2 3"), (5, "2 3 4"), (6, "2 3 4 5"), (7, "4 5 6"), (8, "4 5 6 7"), (9, "6 7 8")],
)
def test_a_stride_moves_a_window_in_steps(count: int, expected: str) -> None:
    """With a stride of 2 a window of 4 begins at the same message for two messages in a row."""
    history = [user(str(n)) for n in range(count)]
    assert names(window(history, 4, stride=2)) == expected
    end = history[-4:]
    assert names(window(end, 4, stride=2, before=count - len(end))) == expected


@pytest.mark.parametrize(("size", "stride"), [(-1, 1), (4, 0), (4, 5)])
def test_a_window_that_cannot_be_is_refused(size: int, stride: int) -> None:
    """A negative size and a stride that does not fit are errors, also for an empty history."""
    with pytest.raises(InvalidValueError):
        window([], size, stride=stride)


def test_a_window_begins_with_the_user_if_asked_to() -> None:
    """Some providers refuse a conversation that begins with the assistant."""
    options = WindowOptions(align_to_user=True)
    assert names(window(TALK, 3, options=options)) == "u3 a3"
    assert names(window([*TALK[:3], system("s"), *TALK[3:]], 4, options=options)) == "s u3 a3"
    assert names(window([user("u"), assistant("a"), assistant("b")], 1, options=options)) == ""


def test_a_window_keeps_the_first_user_if_asked_to() -> None:
    """C66: the first question stays, in front and once, and does not count."""
    options = WindowOptions(keep_first_user=True)
    assert names(window(TALK, 2, options=options)) == "u1 u3 a3"
    assert names(window(TALK, 6, options=options)) == names(TALK)
    assert names(window([assistant("a"), *TALK], 1, options=options)) == "u1 a3"


def test_a_window_keeps_pinned_messages_in_their_groups() -> None:
    """C67: a pinned turn stays with its results, and a pinned result with its turn."""
    options = WindowOptions(keep_pinned=True)
    turn = assistant(ToolCall(id="c", name="t"))
    result = tool_result("c", "found", name="t")
    for history in ([pinned(turn), result, *TALK], [turn, pinned(result), *TALK]):
        cut = window(history, 1, options=options)
        assert [m.id for m in cut] == [turn.id, result.id, TALK[-1].id]
        assert [m.id for m in window(history, 1)] == [TALK[-1].id]


def test_a_pin_is_a_mark_that_is_stored() -> None:
    """Pinning returns a new message of the same id, and says so in its metadata."""
    message = user("keep me")
    assert not is_pinned(message)
    marked = pinned(replace(message, metadata={"mine": 1}))
    assert (marked.id, is_pinned(marked), marked.metadata["mine"]) == (message.id, True, 1)


def test_what_is_always_kept_comes_out_of_a_token_window_first() -> None:
    """A budget holds pinned messages, and then as much of the end as is left."""
    history = [pinned(user("x" * 10)), *TALK]
    options = WindowOptions(keep_pinned=True)
    cut = token_window(history, 14 + 12, counter=chars, options=options)
    assert names(cut) == "xxxxxxxxxx u3 a3"
    assert token_window(history, 0, counter=chars) == []
    with pytest.raises(InvalidValueError):
        token_window(history, -1, counter=chars)


def test_a_budget_keeps_what_a_request_cannot_do_without() -> None:
    """Systems, pins, the last question and the last turn stay; the oldest of the rest goes first."""
    call = assistant(ToolCall(id="c", name="t"))
    history = [
        system("s"),
        user("old"),
        pinned(user("pin")),
        assistant("old"),
        user("question"),
        assistant("thought"),
        call,
        tool_result(call.tool_calls[0], "found"),
    ]
    least = 5 + 7 + 12 + 4 + 9
    assert names(fitted(history, least, counter=chars)) == "s pin question - -"
    assert names(fitted(history, least + 11, counter=chars)) == "s pin question thought - -"
    with pytest.raises(BudgetError, match=r"about 37 tokens, more than the 36"):
        fitted(history, least - 1, counter=chars)


# --- tokens ----------------------------------------------------------------------------------------


def test_a_reply_costs_what_its_provider_counted() -> None:
    """The usage of a reply says what it costs; everything else is estimated."""
    count = TokenEstimator()
    reply = replace(assistant("hello"), usage=Usage(input_tokens=900, output_tokens=50))
    assert count(reply) == 50 + OVERHEAD
    assert count(replace(reply, usage=Usage(input_tokens=900))) == 2 + OVERHEAD


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("abcd" * 10, 10),
        ("привет", 3),
        ("漢字", 2),
        ("한국어", 3),
        ("abcd漢", 2),
        ("\ud83d", 1),
    ],
)
def test_estimates_depend_on_the_script(text: str, tokens: int) -> None:
    """Four characters of English, two of other alphabets, one of Han, Kana or Hangul are a token."""
    assert TokenEstimator()(user(text)) == tokens + OVERHEAD


def test_an_estimator_learns_from_usage() -> None:
    """When a provider counts three times the estimate, estimates are three times as high from then on."""
    count = TokenEstimator()
    messages = [user("abcd" * 100), assistant("abcd" * 100)]
    before = [count(m) for m in messages]
    count.learn(messages, (), Usage(input_tokens=3 * 200 + 2 * OVERHEAD))
    assert count.factor == pytest.approx(3)
    assert [count(m) for m in messages] == [3 * (n - OVERHEAD) + OVERHEAD for n in before]
    for _ in range(50):
        count.learn(messages, (), Usage(input_tokens=200 + 2 * OVERHEAD))
    assert count.factor == pytest.approx(1, abs=0.05)
    count.learn(messages, (), Usage())
    assert count.factor == pytest.approx(1, abs=0.05)


def test_a_single_absurd_count_does_not_ruin_an_estimator() -> None:
    """What a provider counts moves estimates to a half or fourfold at the most."""
    count = TokenEstimator()
    count.learn([user("a")], (), Usage(input_tokens=10**9))
    assert count.factor == 4
    count = TokenEstimator()
    count.learn([user("a" * 1000)], (), Usage(input_tokens=5))
    assert count.factor == 0.5


def test_the_parts_of_a_message_add_up() -> None:
    """Arguments, results, reasoning and media cost tokens, too."""
    count = TokenEstimator()
    call = assistant(Text(text="abcd"), ToolCall(id="c", name="four", args='{"a": 1}'))
    assert count(call) == 1 + 1 + 2 + OVERHEAD
    assert count(tool_result("c", "abcd" * 5, name="four")) == 1 + 5 + OVERHEAD
