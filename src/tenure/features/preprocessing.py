"""Pre-processors of a chat memory: what they are, how they are run, and what they mean for a log.

A pre-processor takes the whole list of messages and returns the list to go on with. What it did to each
message of a run has to be found out when only that run's messages are to be written: `as_written`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from tenure.errors import PreprocessorError
from tenure.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from tenure.signatures import awaited
from tenure.windows import (
    END_ONLY,
    TokenBudget,
    WindowOptions,
    checked_window,
    token_window,
    window,
)

Moment: TypeAlias = Literal["load", "store"]


@runtime_checkable
class Preprocessor(Protocol):
    """Changes the list of messages that is loaded or stored. A plain function will do, too."""

    def preprocess(self, messages: list[Message]) -> Iterable[Message]:
        """Return the messages to go on with. Keep ids and roles: `dataclasses.replace` does."""
        ...


PreprocessorFunction: TypeAlias = Callable[[list[Message]], Iterable[Message]]
AnyPreprocessor: TypeAlias = Preprocessor | PreprocessorFunction


@dataclass(frozen=True, slots=True)
class WindowSizePreprocessor:
    """Keeps the last `size` messages; never a tool result without its call. See `windows.window`."""

    size: int
    stride: int = 1
    options: WindowOptions = END_ONLY

    def __post_init__(self) -> None:
        checked_window(self.size, self.stride)

    def preprocess(self, messages: list[Message], *, before: int = 0) -> list[Message]:
        """Return the last messages of a conversation that has `before` more in front of these."""
        return window(messages, self.size, stride=self.stride, before=before, options=self.options)


@dataclass(frozen=True, slots=True)
class WindowTokensPreprocessor:
    """Keeps the last messages that cost at most a budget of tokens. See `windows.token_window`."""

    budget: TokenBudget
    options: WindowOptions = END_ONLY

    def preprocess(self, messages: list[Message]) -> list[Message]:
        """Return the last messages."""
        return token_window(
            messages, self.budget.tokens, counter=self.budget.counter, options=self.options
        )


WINDOWS = (WindowSizePreprocessor, WindowTokensPreprocessor)
"""The pre-processors that hide messages and do nothing else."""


@dataclass(frozen=True, slots=True)
class FilterMessagesPreprocessor:
    """Keeps the messages for which `predicate` is true."""

    predicate: Callable[[Message], object]

    def preprocess(self, messages: list[Message]) -> list[Message]:
        """Return those messages."""
        return [message for message in messages if self.predicate(message)]


async def processed(preprocessor: AnyPreprocessor, messages: list[Message]) -> list[Message]:
    """Run one pre-processor.

    Raises:
        PreprocessorError: It returned something else than messages.
    """
    given = list(messages)
    if isinstance(preprocessor, Preprocessor):
        returned: object = preprocessor.preprocess(given)
    else:
        returned = preprocessor(given)
    return checked_messages(await awaited(returned), f"The pre-processor {_name(preprocessor)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What pre-processors leave of a run's messages.

    Args:
        messages: What is to be written, in order.
        hidden: The ids of the messages, of whatever run, that a window has hidden.
    """

    messages: list[Message]
    hidden: frozenset[str]


async def as_written(
    preprocessors: Iterable[AnyPreprocessor],
    conversation: list[Message],
    *,
    new: Sequence[Message],
) -> Written:
    """Run pre-processors over a conversation and return what they leave of its new messages.

    A changed message is written changed, a dropped one is not written; what a window hides is written
    as it was when it was hidden.

    Raises:
        PreprocessorError: What a pre-processor did to a new message cannot be told.
    """
    current = conversation
    fate: dict[str, Message | None] = {message.id: message for message in new}
    hidden: set[str] = set()
    for preprocessor in preprocessors:
        after = await processed(preprocessor, current)
        if isinstance(preprocessor, WINDOWS):
            hidden |= {message.id for message in current} - {message.id for message in after}
            current = after
            continue
        matched = _matched(current, after, fate, preprocessor)
        for message in current:
            if message.id in fate:
                fate[message.id] = matched.get(message.id)
        current = [*matched.values()]
    kept = [message for message in fate.values() if message is not None]
    return Written(messages=kept, hidden=frozenset(hidden))


def _matched(
    before: list[Message],
    after: list[Message],
    new: Iterable[str],
    preprocessor: AnyPreprocessor,
) -> dict[str, Message]:
    """Return the processed messages by the id of the message that each one stands for, in order.

    A message stands for the one of its id; else for one that it equals, in its own place if it can be,
    and else for the last such, so that nothing of this run is lost; else, when the list kept its
    length, for the one in its place. What stands for nothing is taken to concern the history that
    is stored already, and is not written, as long as nothing of this run is missing.

    Raises:
        PreprocessorError: Messages of this run are missing while unknown ones are there: which is
            which cannot be told.
    """
    known = {message.id for message in before}
    kept = {message.id for message in after} & known
    free = {index: message for index, message in enumerate(before) if message.id not in kept}
    fresh = [index for index, message in enumerate(after) if message.id not in known]
    originals: dict[int, str] = {}
    for index in fresh:
        if index in free and free[index] == after[index]:
            originals[index] = free.pop(index).id
    for index in reversed(fresh):
        if index not in originals:
            equal = (place for place in reversed(free) if free[place] == after[index])
            if (place := next(equal, None)) is not None:
                originals[index] = free.pop(place).id
    if len(after) == len(before):
        changed = [index for index in fresh if index not in originals and index in free]
        originals |= {index: free[index].id for index in changed}
    matched: dict[str, Message] = {}
    for index, message in enumerate(after):
        if message.id in known:
            matched[message.id] = message
        elif index in originals:
            matched[originals[index]] = replace(message, id=originals[index])
    strangers = len(fresh) - len(originals)
    if strangers and (known & set(new)) - matched.keys():
        raise PreprocessorError(
            f"The pre-processor {_name(preprocessor)} returned {strangers} messages with new ids "
            "and left some of this run's out, so that it cannot be told which stands for which; "
            "keep the ids, for instance with dataclasses.replace(message, parts=...)."
        )
    return matched


def checked_messages(value: object, who: str) -> list[Message]:
    """Return the messages in a value that users' code gave.

    Raises:
        PreprocessorError: It holds something else.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise PreprocessorError(f"{who} returned {_described(value)}; return a list of messages.")
    items = list(cast("Iterable[object]", value))
    for item in items:
        if not isinstance(item, (SystemMessage, UserMessage, AssistantMessage, ToolMessage)):
            raise PreprocessorError(
                f"{who} returned a list with {_described(item)} in it; return messages only."
            )
    return cast("list[Message]", items)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _name(preprocessor: object) -> str:
    return getattr(preprocessor, "__name__", type(preprocessor).__name__)
