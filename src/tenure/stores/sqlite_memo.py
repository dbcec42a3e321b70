"""The messages that the SQLite driver has decoded or written lately, by the bodies of their rows.

Whoever reads the end of a conversation reads mostly what the last reader has read; decoding a message
takes 10 us, and finding it here half of one. A body says everything that is in a message, so nothing is
found here that is not in the file any more, or is another's. What erases texts clears the memo too.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress

from tenure.codec import is_plain, parts_of
from tenure.mappings import EMPTY
from tenure.messages import Message

MEMO_MESSAGES = 4096
"""How many are kept, those that were used last; with `MEMO_BODY_BYTES` at most 16 MiB of bodies, and 18 of
messages (430 bytes each beside the text). Guess: the ends of 200 conversations.
"""

MEMO_BODY_BYTES = 4096
"""Longer ones are not kept: they are few, and most of the time that they take is the text's."""

_MAPPINGS = ("metadata", "provider", "extra", "data", "details")


class Memo:
    """Keeps messages that no holder can change: those whose mappings are all empty.

    Several threads use it at once, without a lock (which a fork could leave locked): each step is one
    call of a dict's, and at worst a message is decoded twice.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[str, Message] = OrderedDict()

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, body: str) -> Message | None:
        """Return the message of this body if it is kept."""
        message = self._messages.get(body)
        if message is not None:
            with suppress(KeyError):  # dropped meanwhile
                self._messages.move_to_end(body)
        return message

    def put(self, body: str, message: Message) -> None:
        """Keep a message that was decoded, unless it is long or can be changed."""
        if _is_immutable(message):
            self._keep(body, message)

    def put_written(self, body: str, message: Message) -> None:
        """Keep a message that is being written, if reading this body is sure to give the same one.

        It is not when it has two halves of a surrogate pair, which are read as one character.
        """
        if is_plain(message) and r"\ud" not in body:
            self._keep(body, message)

    def clear(self) -> None:
        """Forget everything."""
        self._messages.clear()

    def _keep(self, body: str, message: Message) -> None:
        """Keep a message that is not long, and drop the one that was not used for longest."""
        if len(body) <= MEMO_BODY_BYTES:
            self._messages[body] = message
            if len(self._messages) > MEMO_MESSAGES:
                with suppress(KeyError):  # cleared meanwhile
                    self._messages.popitem(last=False)


def _is_immutable(message: Message) -> bool:
    holders = (message, *parts_of(message), getattr(message, "usage", None))
    return all(getattr(holder, name, EMPTY) is EMPTY for holder in holders for name in _MAPPINGS)
