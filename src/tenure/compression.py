"""History compression: long conversations become short ones that still say what matters.

A `HistoryCompression` decides what of a history is put into words and what stays as it is. It asks through
a `Summarizer`, which shows a model the messages as one block of text under an instruction of its own, so
that the model does not go on with the conversation. `WriteSession.replace_history_with_tldr` applies one;
`triggers.py` says when to do so without being told.

What every strategy of ours keeps, in the order of the history: system messages, the first message of the
user, memory messages, pinned messages; then come the summaries; then each turn with a call that has no
result yet, with the results that it has, so that the rest can still be added. A summary names the messages
that it stands for in its metadata (`covered_ids`). Compression changes a prompt; a store keeps the history
as it was on another branch.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure.clock import in_utc
from tenure.errors import InvalidValueError
from tenure.marks import covered_ids, is_pinned, is_summary
from tenure.messages import Message, SystemMessage, ToolCall, UserMessage
from tenure.summaries import Summarizer
from tenure.views import paired_results
from tenure.windows import grouped

_log = logging.getLogger(__name__)


def composed(
    messages: Sequence[Message],
    summaries: Iterable[Message],
    *,
    memory: Iterable[Message] = (),
    tail: Iterable[int] = (),
) -> list[Message]:
    """Return what every strategy keeps of a history, with summaries in the place of the rest.

    Args:
        messages: The whole history.
        summaries: What stands for the rest.
        memory: The messages that are kept as memory.
        tail: Indices of what stays besides, behind the summaries.
    """
    left = pending(messages)
    behind = left | set(tail)
    memory_ids = {message.id for message in memory}
    marked = {i for i, m in enumerate(messages) if m.id in memory_ids or is_pinned(m)}
    head = {i for i, m in enumerate(messages) if isinstance(m, SystemMessage)}
    head |= grouped(messages, marked) | {*first_user(messages)}
    return [
        *(m for i, m in enumerate(messages) if i in head - behind),
        *summaries,
        *(m for i, m in enumerate(messages) if i in behind),
    ]


def first_user(messages: Sequence[Message]) -> list[int]:
    """The index of the first message of the user that has words, if there is one."""
    users = (i for i, m in enumerate(messages) if isinstance(m, UserMessage) and m.text)
    return [*users][:1]


def pending(messages: Sequence[Message]) -> set[int]:
    """The indices of the turns with a call that has no result, and of the results that they have."""
    answered = set(paired_results(messages).values())
    open_turns = {
        index
        for index, message in enumerate(messages)
        for position, part in enumerate(message.parts)
        if isinstance(part, ToolCall) and (index, position) not in answered
    }
    return grouped(messages, open_turns)


# --- strategies ------------------------------------------------------------------------------------


class HistoryCompression(ABC):
    """A way to make a history shorter. Subclass it for one of your own."""

    @abstractmethod
    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what takes the place of a history; `composed` puts it together as the others do.

        When this raises, the history stays as it is.

        Args:
            messages: The history, system messages and open calls included.
            summarizer: Puts messages into words.
        """

    def is_worthwhile(self, messages: Sequence[Message]) -> bool:
        """Whether there is enough in a history that is not summarised yet; for `compress_when`."""
        return len(_unsummarised(messages)) > 1


class NoCompression(HistoryCompression):
    """Changes nothing."""

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return the messages."""
        return messages

    def is_worthwhile(self, messages: Sequence[Message]) -> bool:
        """Never."""
        return False


class WholeHistory(HistoryCompression):
    """One summary of everything."""

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, and the summary. Asks once."""
        return await _with_one_summary(messages, messages, summarizer)


class WholeHistoryMultipleSystemMessages(HistoryCompression):
    """One summary for each block: a system message and what follows it up to the next one.

    What stands before the first system message belongs to the first block. Each block keeps its own first
    message of the user.
    """

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return the blocks, one behind the other. Asks once for each."""
        if not material(messages):
            return messages
        shorter: list[Message] = []
        for block in _blocks(finished(messages)):
            shorter += composed(block, [await summarizer.tldr(block)], memory=summarizer.memory)
        left = pending(messages)
        return [*shorter, *(m for i, m in enumerate(messages) if i in left)]


@dataclass(frozen=True)
class FromLastNMessages(HistoryCompression):
    """One summary of the last `n` messages and the system messages; what is older is left out.

    It does not keep the last messages as they are: `KeepLastN` does.
    """

    n: int

    def __post_init__(self) -> None:
        at_least(0, n=self.n)

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, and the summary. Asks once."""
        end = messages[max(len(messages) - self.n, 0) :]
        return await _with_one_summary(messages, end, summarizer)


@dataclass(frozen=True)
class FromTimestamp(HistoryCompression):
    """One summary of what was said at a moment or later, and of the system messages.

    What is older is left out.
    """

    moment: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "moment", in_utc(self.moment))

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, and the summary. Asks once."""
        later = [message for message in messages if message.created_at >= self.moment]
        return await _with_one_summary(messages, later, summarizer)


@dataclass(frozen=True)
class Chunked(HistoryCompression):
    """One summary for each `size` messages, system messages counted."""

    size: int

    def __post_init__(self) -> None:
        at_least(1, size=self.size)

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, and the summaries in order. Asks once for each."""
        if not material(messages):
            return messages
        done = finished(messages)
        chunks = [done[i : i + self.size] for i in range(0, len(done), self.size)]
        summaries = [await summarizer.tldr(chunk) for chunk in chunks]
        return composed(messages, summaries, memory=summarizer.memory)


@dataclass(frozen=True)
class KeepLastN(HistoryCompression):
    """Keeps the last `n` messages as they are, and has one summary for what is older.

    It runs: the next time, the summary and what came since are summarised, and not everything again. A
    turn stays together with its results, so it may keep a few more than `n`; the last message of the user
    always stays.
    """

    n: int

    def __post_init__(self) -> None:
        at_least(0, n=self.n)

    async def compress(
        self, messages: Sequence[Message], summarizer: Summarizer
    ) -> Sequence[Message]:
        """Return what is kept, the summary and the last messages. Asks once."""
        tail = self._tail(messages)
        older = [m for i, m in enumerate(messages) if i not in tail]
        known = {covered for message in older for covered in covered_ids(message)}
        new = [m for m in older if m.id not in known]
        if not _unsummarised(new):
            return messages
        summary = await summarizer.tldr(new)
        return composed(messages, [summary], memory=summarizer.memory, tail=tail)

    def is_worthwhile(self, messages: Sequence[Message]) -> bool:
        """Whether more than one message would be put into words that is not there already."""
        tail = self._tail(messages)
        return len(_unsummarised([m for i, m in enumerate(messages) if i not in tail])) > 1

    def _tail(self, messages: Sequence[Message]) -> set[int]:
        """What stays: the last messages, in whole groups, open turns and the last user's message."""
        last = set(range(max(len(messages) - self.n, 0), len(messages)))
        users = [i for i, m in enumerate(messages) if isinstance(m, UserMessage)]
        return grouped(messages, last | {*users[-1:]}) | pending(messages)


async def _with_one_summary(
    messages: Sequence[Message], summarised: Sequence[Message], summarizer: Summarizer
) -> Sequence[Message]:
    """Everything that is kept, and one summary of some messages and the system messages."""
    wanted = {message.id for message in summarised}
    shown = [
        message
        for message in finished(messages)
        if message.id in wanted or isinstance(message, SystemMessage)
    ]
    if not material(shown):
        return messages
    return composed(messages, [await summarizer.tldr(shown)], memory=summarizer.memory)


def finished(messages: Sequence[Message]) -> list[Message]:
    """The messages without turns that still have open calls."""
    left = pending(messages)
    return [message for index, message in enumerate(messages) if index not in left]


def material(messages: Sequence[Message]) -> bool:
    """Whether there is anything to put into words: more than system messages and open turns."""
    return any(not isinstance(message, SystemMessage) for message in finished(messages))


def _unsummarised(messages: Sequence[Message]) -> list[Message]:
    """The messages that no summary among them stands for, and that are none themselves."""
    known = {covered for message in messages for covered in covered_ids(message)}
    return [
        message
        for message in finished(messages)
        if not isinstance(message, SystemMessage)
        and not is_summary(message)
        and message.id not in known
    ]


def _blocks(messages: Sequence[Message]) -> list[list[Message]]:
    """A history cut at its system messages; what comes before the first one is in its block."""
    blocks: list[list[Message]] = [[]]
    for message in messages:
        begins = isinstance(message, SystemMessage)
        if begins and any(isinstance(m, SystemMessage) for m in blocks[-1]):
            blocks.append([])
        blocks[-1].append(message)
    return blocks


def checked_strategy(value: object) -> HistoryCompression:
    """Return a strategy that a user gave.

    Raises:
        InvalidValueError: It is none, such as a name, or the class of one.
    """
    if not isinstance(value, HistoryCompression):
        raise InvalidValueError(f"{value!r} is no strategy; give an object such as KeepLastN(10).")
    return value


def at_least(least: int, **numbers: int) -> None:
    """Refuse numbers, by their names, that are too small or no whole numbers."""
    for name, number in numbers.items():
        if not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(f"{name}={number!r} cannot be; give a whole number.")
        if number < least:
            raise InvalidValueError(f"{name}={number} cannot be; give {least} or more.")
