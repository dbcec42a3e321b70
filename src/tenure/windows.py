"""Windows: which messages of a long conversation a request has room for.

A window is the end of a conversation, by a number of messages or of tokens. It cuts between groups only: a
turn and the results of its calls are in it together or not at all. On request, pinned messages and the
first message of the user are kept wherever they stand. A window hides; it never changes what is stored.

Windows are cuts, and nothing more: that what is left is valid for a model is the business of `views.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.errors import BudgetError, InvalidValueError
from tenure.marks import is_pinned, is_summary
from tenure.messages import Message, SystemMessage, ToolMessage, UserMessage
from tenure.tokens import TokenCounter, TokenEstimator
from tenure.views import paired_results, with_only_results, with_tools_as_text

if TYPE_CHECKING:
    from tenure.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """What a window keeps besides its end, and where it begins.

    Args:
        align_to_user: Whether it begins with a user's message (and leaves out what stands before
            it, but for system messages), because some providers refuse anything else.
        keep_first_user: Whether the first message of the user is kept.
        keep_pinned: Whether pinned messages are kept.
    """

    align_to_user: bool = False
    keep_first_user: bool = False
    keep_pinned: bool = False

    @property
    def needs_all(self) -> bool:
        """Whether the end of a conversation is not enough to know the window."""
        return self.keep_first_user or self.keep_pinned


END_ONLY = WindowOptions()
"""A window of the end, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """How many tokens the messages and tools of a request may cost, and how they are counted.

    Args:
        tokens: At most so many; leave room for the reply in the model's context.
        counter: Counts the tokens of a message.
        options: What is kept besides the end; pinned messages always are.
    """

    tokens: int
    counter: TokenCounter
    options: WindowOptions = END_ONLY

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, int):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(
                f"A budget of {self.tokens!r} tokens cannot be; give a whole number."
            )
        if self.tokens < 1:
            raise InvalidValueError(f"A budget of {self.tokens} tokens cannot be; give 1 or more.")

    def for_messages(self, tools: Iterable[ToolSpec]) -> int:
        """What these tools leave for messages."""
        estimator = self.counter if isinstance(self.counter, TokenEstimator) else TokenEstimator()
        return self.tokens - estimator.tools(tools)


def window(
    messages: Sequence[Message],
    size: int,
    *,
    stride: int = 1,
    before: int = 0,
    options: WindowOptions = WindowOptions(),  # frozen
) -> list[Message]:
    """Return the last `size` messages, without results whose call is not among them.

    The result may hold fewer than `size`: a tool message that loses all its results goes, one that
    holds other parts as well keeps those. It may hold more: what is kept wherever it stands does not
    count. At least as large as the conversation, it changes nothing.

    Args:
        messages: The conversation, or its end.
        size: How many messages.
        stride: The window moves on in steps of so many messages, and is up to `stride - 1` shorter
            than `size` in between. Requests then begin alike for several turns, as a provider's
            prompt cache needs it.
        before: How many messages of the conversation stand before these; where a step begins
            depends on it.
        options: What else decides.

    Raises:
        InvalidValueError: A number is too small.
    """
    checked_window(size, stride)
    if size >= len(messages) + before:
        return list(messages)
    start = -(-(before + len(messages) - size) // stride) * stride - before
    return _from(messages, max(start, 0), options)


def checked_window(size: int, stride: int) -> None:
    """Refuse a window that cannot be.

    Raises:
        InvalidValueError: The size is negative, or the stride is less than 1 or more than the size,
            or one of them is no whole number.
    """
    for name, number in (("size", size), ("stride", stride)):
        if not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(f"{name}={number!r} cannot be; give a whole number.")
    if size < 0:
        raise InvalidValueError(f"A window of {size} messages cannot be; give 0 or more.")
    if stride < 1 or stride > max(size, 1):
        raise InvalidValueError(
            f"A stride of {stride} messages cannot be with a window of {size}; give 1 to {size}."
        )


def token_window(
    messages: Sequence[Message],
    budget: int,
    *,
    counter: TokenCounter,
    options: WindowOptions = WindowOptions(),  # frozen
) -> list[Message]:
    """Return the last messages that cost no more than `budget` tokens together; see `window`.

    What is kept wherever it stands comes out of the same budget, first. Where everything fits,
    nothing changes.

    Raises:
        InvalidValueError: `budget` is negative.
    """
    if budget < 0:
        raise InvalidValueError(f"A budget of {budget} tokens cannot be; give 0 or more.")
    costs = [counter(message) for message in messages]
    if sum(costs) <= budget:
        return list(messages)
    start = _start_within(costs, budget, _always(messages, options))
    return _from(messages, start, options)


def fitted(
    messages: Sequence[Message],
    budget: int,
    *,
    counter: TokenCounter,
    options: WindowOptions = END_ONLY,
) -> list[Message]:
    """Return a request's messages without the oldest that it has no room for.

    System messages, pinned ones, the last summary, the last message of the user, and the last turn
    with its results stay. Of the rest, the latest stay.

    Raises:
        BudgetError: What has to stay costs more than the budget.
    """
    costs = [counter(message) for message in messages]
    if sum(costs) <= budget:
        return list(messages)
    always = _always(messages, replace(options, keep_pinned=True))
    always |= {index for index, m in enumerate(messages) if isinstance(m, SystemMessage)}
    always |= grouped(messages, _last_ones(messages))
    if (least := sum(costs[index] for index in always)) > budget:
        raise BudgetError(
            f"The system prompt and the latest messages cost about {least} tokens, more than the "
            f"{budget} that the budget leaves for messages; raise it, or send less."
        )
    start = _start_within(costs, budget, always)
    return selection(messages, always | _end(messages, start, options))


def cost_as_text(counter: TokenCounter, offered: AbstractSet[str], message: Message) -> int:
    """Return what a message costs in the form in which it is sent where these tools are offered."""
    return counter(*with_tools_as_text([message], offered=offered))


def selection(messages: Sequence[Message], kept: AbstractSet[int]) -> list[Message]:
    """Return the messages at the indices `kept`, each turn together with its results or not at all.

    When a turn or a message with a result of it is not kept, the turn goes and so do all its results.
    A result without its call goes too; what else a tool message holds stays.
    """
    pairs = paired_results(messages)
    torn = {turn for (index, _), (turn, _) in pairs.items() if not {index, turn} <= kept}
    left: list[Message] = []
    whole: dict[int, set[int]] = {}
    for (index, position), (turn, _) in pairs.items():
        if turn not in torn:
            whole.setdefault(index, set()).add(position)
    for index, message in enumerate(messages):
        if index not in kept or index in torn:
            continue
        if isinstance(message, ToolMessage) and message.tool_results:
            message = with_only_results(message, whole.get(index, frozenset()))
            if not message.parts:
                continue
        left.append(message)
    return left


def _from(messages: Sequence[Message], start: int, options: WindowOptions) -> list[Message]:
    """The messages from an index on, and those that are kept wherever they stand."""
    return selection(messages, _end(messages, start, options) | _always(messages, options))


def _end(messages: Sequence[Message], start: int, options: WindowOptions) -> set[int]:
    """The indices from one on; from the first message of the user on, if that is asked for."""
    end = range(start, len(messages))
    if not options.align_to_user:
        return set(end)
    first = next((i for i in end if isinstance(messages[i], UserMessage)), len(messages))
    return {i for i in end if i >= first or isinstance(messages[i], SystemMessage)}


def _always(messages: Sequence[Message], options: WindowOptions) -> set[int]:
    """What is kept wherever it stands, in whole groups."""
    wanted: set[int] = set()
    if options.keep_pinned:
        wanted |= {index for index, message in enumerate(messages) if is_pinned(message)}
    if options.keep_first_user:
        users = (i for i, m in enumerate(messages) if isinstance(m, UserMessage) and m.text)
        wanted |= {*list(users)[:1]}
    return grouped(messages, wanted)


def _last_ones(messages: Sequence[Message]) -> set[int]:
    """The last summary, the last message of the user, and the last one that is no tool message."""
    summaries = [index for index, m in enumerate(messages) if is_summary(m)]
    users = [index for index, m in enumerate(messages) if isinstance(m, UserMessage)]
    others = [index for index, m in enumerate(messages) if not isinstance(m, ToolMessage)]
    return {*summaries[-1:], *users[-1:], *others[-1:]}


def grouped(messages: Sequence[Message], wanted: Iterable[int]) -> set[int]:
    """Return indices with those of the groups that they are in: turns and their results."""
    found = set(wanted)
    if found:
        links = {(index, turn) for (index, _), (turn, _) in paired_results(messages).items()}
        size = 0
        while len(found) > size:
            size = len(found)
            for link in links:
                if not found.isdisjoint(link):
                    found.update(link)
    return found


def _start_within(costs: Sequence[int], budget: int, always: AbstractSet[int]) -> int:
    """Where the longest end begins that the budget holds together with what is always kept."""
    left = budget - sum(costs[index] for index in always)
    for index in range(len(costs) - 1, -1, -1):
        if index not in always:
            left -= costs[index]
            if left < 0:
                return index + 1
    return 0
