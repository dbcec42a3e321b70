"""ChatMemory: the agent remembers its conversations.

Before a run it loads the conversation's history into the prompt; after a run that succeeded it stores what
is new. The run is atomic: when it fails or is cancelled, the history is what it was.

Pre-processors see the whole list of messages, in the order in which they were added, when loading and when
storing; the agent's own system prompt is never among them. There are two kinds of place to keep history:

- **A store** (the default): a log that is only appended to. When storing, what the pre-processors do to
  *this run's* messages is written: a changed message is written changed, a dropped one is not written. What
  is stored already stays as it is, and a window hides messages from the model without removing any.
- **A provider of your own**, with just `load` and `store`: it is given the whole processed list each time,
  and keeps that instead of what it had. There a window does cut.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

from tenure.errors import (
    HistoryNotStoredError,
    InvalidValueError,
    PreprocessorError,
    TenureError,
)
from tenure.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from tenure.run import Feature, RunContext, RunResult
from tenure.stores import InMemoryStore, Store, open_store
from tenure.views import window

Moment: TypeAlias = Literal["load", "store"]


@runtime_checkable
class ChatHistoryProvider(Protocol):
    """Anybody's place to keep histories. Either method may be sync or async."""

    def load(
        self, session_id: str
    ) -> Iterable[Message] | Awaitable[Iterable[Message] | None] | None:
        """Return a conversation's messages in order; nothing or None when there is none."""
        ...

    def store(self, session_id: str, messages: list[Message]) -> object:
        """Keep these messages as the whole conversation, in place of what was kept before."""
        ...


@runtime_checkable
class Preprocessor(Protocol):
    """Changes the list of messages that is loaded or stored. A plain function will do, too."""

    def preprocess(self, messages: list[Message]) -> Iterable[Message]:
        """Return the messages to go on with. Keep ids and roles: `dataclasses.replace` does."""
        ...


PreprocessorFunction: TypeAlias = Callable[[list[Message]], Iterable[Message]]


@dataclass(frozen=True, slots=True)
class WindowSizePreprocessor:
    """Keeps the last `size` messages; never a tool result without its call."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InvalidValueError(
                f"A window of {self.size} messages cannot be; give window_size() 0 or more."
            )

    def preprocess(self, messages: list[Message]) -> list[Message]:
        """Return the last messages."""
        return window(messages, self.size)


@dataclass(frozen=True, slots=True)
class FilterMessagesPreprocessor:
    """Keeps the messages for which `predicate` is true."""

    predicate: Callable[[Message], object]

    def preprocess(self, messages: list[Message]) -> list[Message]:
        """Return those messages."""
        return [message for message in messages if self.predicate(message)]


class ChatMemory(Feature):
    """Loads and stores the conversation of each run that has a session id."""

    def __init__(self, provider: Store | ChatHistoryProvider | str | None = None) -> None:
        """Say where histories are kept.

        Args:
            provider: A store or its URL, such as `"sqlite:///chat.db"`; or an object with `load` and
                `store`. Without one, the store of the agent that it is installed in; and if that has
                none, in RAM, until this object is gone.

        Raises:
            InvalidValueError: It is none of these.
        """
        if isinstance(provider, str):
            provider = open_store(provider)
        # Users err: the types say that this cannot be.
        elif not isinstance(provider, (Store, ChatHistoryProvider, NoneType)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"{provider!r} cannot keep histories; give a URL such as 'sqlite:///chat.db', a "
                "store, or an object with load(session_id) and store(session_id, messages)."
            )
        self._given = provider
        self._preprocessors: list[
            tuple[Preprocessor | PreprocessorFunction, tuple[Moment, ...]]
        ] = []

    @property
    def provider(self) -> Store | ChatHistoryProvider:
        """Where histories are kept."""
        if self._given is None:
            self._given = InMemoryStore()
        return self._given

    def window_size(self, size: int) -> ChatMemory:
        """Go on with only the last `size` messages; returns self.

        Raises:
            InvalidValueError: `size` is negative.
        """
        return self.add_preprocessor(WindowSizePreprocessor(size))

    def filter_messages(self, predicate: Callable[[Message], object]) -> ChatMemory:
        """Go on with only the messages for which `predicate` is true; returns self."""
        return self.add_preprocessor(FilterMessagesPreprocessor(predicate))

    def add_preprocessor(
        self,
        preprocessor: Preprocessor | PreprocessorFunction,
        *,
        apply_on: Sequence[Moment] = ("load", "store"),
    ) -> ChatMemory:
        """Add a pre-processor behind those added before; returns self.

        Args:
            preprocessor: An object with `preprocess(messages)`, or a function of messages.
            apply_on: When it works: `"load"`, `"store"` or both.

        Raises:
            InvalidValueError: It is neither, or `apply_on` holds something else.
        """
        if not isinstance(preprocessor, Preprocessor) and not callable(preprocessor):
            raise InvalidValueError(
                f"{preprocessor!r} is no pre-processor; give a function of a list of messages, or "
                "an object with preprocess(messages)."
            )
        if not apply_on or any(moment not in ("load", "store") for moment in apply_on):
            raise InvalidValueError(f"apply_on={apply_on!r} must hold 'load', 'store' or both.")
        self._preprocessors.append((preprocessor, tuple(apply_on)))
        return self

    # --- hooks ---

    def on_install(self, store: Store | None) -> None:
        """Take the agent's store when no other place was given."""
        if self._given is None:
            self._given = store

    async def on_run_start(self, ctx: RunContext) -> None:
        """Load the history into the prompt, unless this is the conversation's first run."""
        if ctx.session_id is None:
            return
        loaded = await self._loaded(ctx.session_id)
        if loaded is None:
            return
        for preprocessor in self._at("load"):
            loaded = await _processed(preprocessor, loaded)
        ctx.continue_from(loaded)
        ctx.storage[self] = True

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        """Store the run's messages, and the agent's initial ones with a conversation's first."""
        if ctx.session_id is None:
            return
        is_first = self not in ctx.storage
        new = (*ctx.initial_messages, *result.new_messages) if is_first else result.new_messages
        try:
            if isinstance(self.provider, Store):
                written = await self._written(ctx.conversation, new)
                await self.provider.append(ctx.session_id, written, run_id=ctx.run_id)
            else:
                messages = ctx.conversation
                for preprocessor in self._at("store"):
                    messages = await _processed(preprocessor, messages)
                await _awaited(self.provider.store(ctx.session_id, messages))
        except Exception as exc:
            why = str(exc) if isinstance(exc, TenureError) else f"{type(exc).__name__}: {exc}"
            raise HistoryNotStoredError(
                f"The answer in conversation {ctx.session_id!r} was produced but not stored: {why} "
                "The answer is this error's .result; the stored history is as it was.",
                result=result,
            ) from exc

    # --- loading ---

    async def _loaded(self, session_id: str) -> list[Message] | None:
        """The history before pre-processing; None when there is none."""
        if isinstance(self.provider, Store):
            last = self._leading_window()
            messages = await self.provider.read(session_id, last=last)
            if last is not None and any(map(_has_anonymous_result, messages)):
                # Which call a result without id belongs to, only the whole history can tell.
                messages = await self.provider.read(session_id)
            if not messages and await self.provider.conversation(session_id) is None:
                return None
            return messages
        found = await _awaited(self.provider.load(session_id))
        if not found:
            return None
        return _checked(found, f"The provider {type(self.provider).__name__}'s load()")

    def _leading_window(self) -> int | None:
        """How much of the history can be of any use, when the first pre-processor is a window."""
        first = next(iter(self._at("load")), None)
        return first.size if isinstance(first, WindowSizePreprocessor) else None

    # --- storing in a log ---

    async def _written(self, conversation: list[Message], new: Sequence[Message]) -> list[Message]:
        """What is to be appended: the new messages, as the pre-processors leave them."""
        current = conversation
        fate: dict[str, Message | None] = {message.id: message for message in new}
        for preprocessor in self._at("store"):
            processed = await _processed(preprocessor, current)
            if isinstance(preprocessor, WindowSizePreprocessor):
                current = processed  # only hides: what falls out is written as it is now
                continue
            matched = _matched(current, processed, fate, preprocessor)
            for message in current:
                if message.id in fate:
                    fate[message.id] = matched.get(message.id)
            current = [*matched.values()]
        return [message for message in fate.values() if message is not None]

    def _at(self, moment: Moment) -> Iterable[Preprocessor | PreprocessorFunction]:
        return (p for p, moments in self._preprocessors if moment in moments)


def _matched(
    before: list[Message],
    after: list[Message],
    new: Iterable[str],
    preprocessor: Preprocessor | PreprocessorFunction,
) -> dict[str, Message]:
    """Return the processed messages by the id of the message that each one stands for, in order.

    A message stands for the one of its id; else, when the list kept its length, for the one in its
    place; else for one that it equals. What stands for nothing is taken to concern the history that
    is stored already, and is not written, as long as nothing of this run is missing.

    Raises:
        PreprocessorError: Messages of this run are missing while unknown ones are there: which is
            which cannot be told.
    """
    matched: dict[str, Message] = {}
    known = {message.id for message in before}
    kept = {message.id for message in after} & known
    free = [message for message in before if message.id not in kept]
    strangers = 0
    for index, message in enumerate(after):
        if message.id in known:
            matched[message.id] = message
        elif len(after) == len(before) and before[index].id not in kept:
            original = before[index]
            matched[original.id] = replace(message, id=original.id)
        elif (original := next((m for m in free if m == message), None)) is not None:
            free.remove(original)
            matched[original.id] = original
        else:
            strangers += 1
    if strangers and not set(new) <= matched.keys():
        raise PreprocessorError(
            f"The pre-processor {_name(preprocessor)} returned {strangers} messages with new ids "
            "and left some of this run's out, so that it cannot be told which stands for which; "
            "keep the ids, for instance with dataclasses.replace(message, parts=...)."
        )
    return matched


async def _processed(
    preprocessor: Preprocessor | PreprocessorFunction, messages: list[Message]
) -> list[Message]:
    given = list(messages)
    if isinstance(preprocessor, Preprocessor):
        returned: object = preprocessor.preprocess(given)
    else:
        returned = preprocessor(given)
    return _checked(await _awaited(returned), f"The pre-processor {_name(preprocessor)}")


def _checked(value: object, who: str) -> list[Message]:
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


async def _awaited(value: object) -> object:
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def _has_anonymous_result(message: Message) -> bool:
    return any(result.call_id is None for result in message.tool_results)


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _name(preprocessor: object) -> str:
    return getattr(preprocessor, "__name__", type(preprocessor).__name__)
