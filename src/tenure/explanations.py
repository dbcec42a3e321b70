"""What a request would hold, and why the rest is not in it: for people who look into a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tenure.errors import BudgetError
from tenure.messages import Message, Part, Reasoning, SystemMessage, ToolResult
from tenure.saying import user
from tenure.views import paired_results, valid_view, with_tools_as_text
from tenure.windows import TokenBudget, cost_as_text, fitted

Window = Callable[[list[Message]], list[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something of a conversation that a request has not.

    Args:
        message: The message.
        part: The part of it; None for the whole message.
        reason: Why, as the end of a sentence that begins with "left out: ".
    """

    message: Message
    part: Part | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedView:
    """What a request would hold of a conversation.

    Args:
        sent: The messages, as a model would get them; what is said next comes behind them.
        left_out: What it would not get, in the order of the conversation.
    """

    sent: list[Message]
    left_out: list[LeftOut]


def explained_view(
    history: Sequence[Message],
    *,
    window: Window,
    window_name: str,
    system_prompt: SystemMessage | None,
    budget: TokenBudget | None,
    upcoming: Message | None = None,
) -> ExplainedView:
    """Return what the next request on a conversation would hold.

    Args:
        history: The whole conversation.
        window: The pre-processing of a chat memory.
        window_name: What to call it: "the window of 50 messages".
        system_prompt: The agent's own.
        budget: What the request may cost.
        upcoming: What is said next; if it is not known yet, the request is shown without it.
    """
    shown = window([*history])
    places = {message.id: place for place, message in enumerate(history)}
    begin = places[shown[0].id] if shown and shown[0].id in places else len(history)
    loose = {(each.message.id, id(each.part)): each for each in _repaired(history, None)}
    left_out: list[LeftOut] = []
    for each in _missing(history, shown, f"outside {window_name}"):
        parts = each.message.parts if each.part is None else (each.part,)
        keys = [(each.message.id, id(part)) for part in parts]
        if places[each.message.id] >= begin and all(key in loose for key in keys):
            left_out += [loose[key] for key in keys]  # is in the window, and goes all the same
        else:
            left_out.append(each)
    left_out += _repaired(shown, system_prompt)
    last = upcoming or user("")  # a request ends with what is said next, which answers no call
    view = valid_view([*shown, last], system_prompt=system_prompt)
    if budget is not None:
        counter = partial(cost_as_text, budget.counter, frozenset[str]())
        try:
            sent = fitted(view, budget.tokens, counter=counter, options=budget.options)
        except BudgetError as exc:
            return ExplainedView(sent=[], left_out=[LeftOut(message=view[0], reason=str(exc))])
        cut = _missing(view, sent, f"over the budget of {budget.tokens} tokens")
        left_out += [each for each in cut if each.message.id in places]
        view = sent
    left_out.sort(key=lambda each: places.get(each.message.id, -1))
    if upcoming is None:
        view = [message for message in view if message.id != last.id]
    sent = with_tools_as_text(view)
    return ExplainedView(sent=sent, left_out=left_out)


def _missing(before: Sequence[Message], after: Sequence[Message], reason: str) -> Iterator[LeftOut]:
    """What a cut has taken away: messages, and results that lost their calls to it."""
    left = {message.id: message for message in after}
    gone: set[str] = set()
    for message in before:
        if message.id not in left:
            if message.id not in gone:  # a view may have it in two pieces
                yield LeftOut(message=message, reason=reason)
            gone.add(message.id)
        else:
            kept = [*left[message.id].parts]
            for part in message.parts:
                if part not in kept:
                    yield LeftOut(message=message, part=part, reason=f"its call is {reason}")


def _repaired(messages: Sequence[Message], own: SystemMessage | None) -> Iterator[LeftOut]:
    """What a valid view leaves out of messages; `views.valid_view` has the rules."""
    pairs = paired_results(messages)
    called: set[str | None] = set()
    for index, message in enumerate(messages):
        called |= {call.id for call in message.tool_calls}
        for position, part in enumerate(message.parts):
            if isinstance(part, ToolResult) and (index, position) not in pairs:
                is_second = part.call_id is not None and part.call_id in called
                reason = "its call has a result already" if is_second else "it answers no call"
                yield LeftOut(message=message, part=part, reason=reason)
            elif isinstance(part, Reasoning) and all(
                isinstance(later, Reasoning) for later in message.parts[position:]
            ):
                reason = "nothing follows this reasoning"
                yield LeftOut(message=message, part=part, reason=reason)
        if own is not None and isinstance(message, SystemMessage) and message.parts == own.parts:
            yield LeftOut(message=message, reason="the system prompt is sent once")
