"""Marks: what the metadata of a message says about how it is to be treated.

They are stored with the message, and no model is ever sent them. Nothing is told by the words of a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from tenure.messages import Message

PINNED = "tenure.pinned"
"""The key in a message's metadata that marks it as pinned."""

COVERS = "tenure.covers"
"""The key in a summary's metadata that holds the ids of the messages it stands for, in order."""

MEMORY = "tenure.memory"
"""The key in a message's metadata that marks it as memory, which compression keeps."""


def pinned(message: Message) -> Message:
    """Return the message with a mark: budgets and compression never leave it out, nor do windows that
    keep pinned messages.
    """
    return replace(message, metadata={**message.metadata, PINNED: True})


def is_pinned(message: Message) -> bool:
    """Whether a message is marked by `pinned`."""
    return message.metadata.get(PINNED) is True


def as_memory(message: Message) -> Message:
    """Return the message with the mark that compression keeps it as memory."""
    return replace(message, metadata={**message.metadata, MEMORY: True})


def is_memory(message: Message) -> bool:
    """Whether a message is marked as memory."""
    return message.metadata.get(MEMORY) is True


def is_summary(message: Message) -> bool:
    """Whether a message stands for others."""
    return COVERS in message.metadata


def covered_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of the messages that a summary stands for; empty for any other message."""
    return tuple(cast("Iterable[str]", message.metadata.get(COVERS, ())))
