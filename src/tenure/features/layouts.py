"""How a checkpoint names the messages of a prompt without copying them.

A message that the store has in the conversation's history, or in the run's log, is named by its place
there; many that follow each other are named at once. So what a checkpoint costs does not depend on how
long the history is. Only a message that was changed and kept its id is written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Literal, TypeAlias, cast

from tenure.codec import from_dict, to_dict
from tenure.errors import StoreError
from tenure.messages import Json, Message

Kind: TypeAlias = Literal["own", "history", "log"]
Item: TypeAlias = tuple[Kind, int, int] | Message
"""Messages by the first and the last of their places, or one message written out."""

_OWN: Item = ("own", 0, 0)


@dataclass(frozen=True, slots=True)
class Laid:
    """Messages, and how they are named."""

    messages: tuple[Message, ...] = ()
    items: tuple[Item, ...] = ()


@dataclass(slots=True)
class Shelf:
    """Where messages are that can be named by their places, which begin with 0.

    Args:
        own: The agent's own system prompt, which is stored nowhere.
        history: Consecutive messages of the history, up to its end, as they are in the store.
        log: What the run has logged, in order.
    """

    own: Message | None = None
    history: Sequence[Message] = ()
    log: list[Message] = field(default_factory=list[Message])
    _in_history: dict[str, int] = field(init=False, repr=False)
    _in_log: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._in_history = {message.id: place for place, message in enumerate(self.history)}
        self._in_log = {message.id: place for place, message in enumerate(self.log)}

    def logged(self, messages: Iterable[Message]) -> None:
        """Note what was logged behind the rest."""
        for message in messages:
            self._in_log[message.id] = len(self.log)
            self.log.append(message)

    def lay(self, messages: tuple[Message, ...], before: Laid, new: list[Message]) -> Laid:
        """Return how messages are named.

        Args:
            messages: The messages.
            before: Messages that these probably begin with; then only the rest is looked at.
            new: What is to be logged behind the log so far; what is missing there is added.
        """
        known = len(before.messages)
        if known <= len(messages) and all(map(is_, before.messages, messages)):
            items, rest = [*before.items], messages[known:]
        else:
            items, rest = list[Item](), messages
        places = {message.id: len(self.log) + n for n, message in enumerate(new)}
        for message in rest:
            item = self._found(message, places, new)
            if item is None:
                places[message.id] = len(self.log) + len(new)
                item = ("log", places[message.id], places[message.id])
                new.append(message)
            last = items[-1] if items else None
            if isinstance(item, tuple) and isinstance(last, tuple) and _follows(item, last):
                items[-1] = (item[0], last[1], item[2])
            else:
                items.append(item)
        return Laid(messages, tuple(items))

    def take(self, data: Json) -> Laid:
        """Return the messages that JSON names; those that were removed meanwhile are missing.

        Raises:
            StoreError: It is no JSON that `written` has made.
        """
        laid: list[tuple[Item, Sequence[Message]]] = []
        for each in _listed(data):
            match each:
                case ["own"]:
                    laid.append((_OWN, () if self.own is None else (self.own,)))
                case ["history", str(first), str(last)]:
                    # What a smaller window hides now is missing.
                    start = self._in_history.get(first, 0)
                    end = self._in_history.get(last, len(self.history) - 1)
                    laid.append((("history", start, end), self.history[start : end + 1]))
                case ["log", int(start), int(end)]:
                    laid.append((("log", start, end), self.log[start : end + 1]))
                case dict():
                    message = from_dict(cast("dict[str, Json]", each))
                    laid.append((message, (message,)))
                case _:
                    raise StoreError("A stored checkpoint cannot be read; it was damaged.")
        return Laid(
            tuple(message for _, found in laid for message in found),
            tuple(item for item, _ in laid),
        )

    def written(self, laid: Laid, *, in_full: bool) -> list[Json]:
        """Return the JSON of named messages.

        Args:
            laid: The messages.
            in_full: Whether they are written out, but for the agent's own system prompt.
        """
        if in_full:
            return [["own"] if m is self.own else to_dict(m) for m in laid.messages]
        return [self._written(item) for item in laid.items]

    def _written(self, item: Item) -> Json:
        if not isinstance(item, tuple):
            return to_dict(item)
        kind, first, last = item
        if kind == "own":
            return ["own"]
        if kind == "log":
            return ["log", first, last]
        return ["history", self.history[first].id, self.history[last].id]

    def _found(
        self, message: Message, places: Mapping[str, int], new: Sequence[Message]
    ) -> Item | None:
        """Where a message is; itself where another one of its id is in its place; None for nowhere."""
        if message is self.own:
            return _OWN
        in_history = self._in_history.get(message.id)
        if in_history is not None and self.history[in_history] is message:
            return ("history", in_history, in_history)
        place = self._in_log.get(message.id, places.get(message.id))
        if place is None:
            return None
        logged = self.log[place] if place < len(self.log) else new[place - len(self.log)]
        return ("log", place, place) if logged is message or logged == message else message


def _follows(item: tuple[Kind, int, int], last: tuple[Kind, int, int]) -> bool:
    return item[0] == last[0] and item[1] == last[2] + 1


def _listed(data: Json) -> Sequence[Json]:
    if not isinstance(data, list):
        raise StoreError("A stored checkpoint cannot be read; it was damaged.")
    return cast("list[Json]", data)
