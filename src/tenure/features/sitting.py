"""What one run has of its conversation, and how the history that it leaves is made of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from tenure.marks import covered_ids, is_summary
from tenure.messages import Message
from tenure.stores import Store
from tenure.stores.base import Entry
from tenure.stores.leases import Held


@dataclass(slots=True, kw_only=True)
class Sitting:
    """What one run has of its conversation."""

    held: Held
    is_first: bool = True
    loaded: list[Message] = field(default_factory=list[Message])  # before pre-processing
    hidden: set[str] = field(default_factory=set[str])  # ids of what windows left out of it
    shown: list[Message] = field(default_factory=list[Message])  # what the run began with
    history: set[str] = field(default_factory=set[str])  # ids of all of it, if it may be deleted


def shared_length(conversation: list[Message], sitting: Sitting) -> int:
    """How many messages a conversation still begins with of those that its run began with."""
    pairs = zip(conversation, sitting.shown, strict=False)
    changed = (n for n, (now, then) in enumerate(pairs) if now.id != then.id or now != then)
    return next(changed, min(len(conversation), len(sitting.shown)))


def branch_point(entries: list[Entry], conversation: list[Message], shared: int) -> tuple[int, int]:
    """Where a rewritten history leaves the old one.

    What windows and filters hid in front of that place stays in the history, unless the run has
    summarised: then it is in the past with all the rest.

    Returns:
        The entry behind which the new branch goes on, and how many messages are there already.
    """
    ids = {message.id: n for n, message in enumerate(conversation[:shared], 1)}
    if any(is_summary(message) for message in conversation[shared:]):
        entries = [*takewhile(lambda entry: entry.message.id in ids, entries)]
    known = [entry for entry in entries if entry.message.id in ids]
    return (known[-1].seq, ids[known[-1].message.id]) if known else (0, 0)


def of_others(entries: list[Entry], sitting: Sitting) -> list[Message]:
    """What was appended to a history after a run had loaded it."""
    loaded = {message.id for message in sitting.loaded}
    places = [place for place, entry in enumerate(entries, 1) if entry.message.id in loaded]
    return [entry.message for entry in entries[places[-1] :]] if places else []


async def removed_meanwhile(
    store: Store, session_id: str, sitting: Sitting, entries: list[Entry]
) -> set[str]:
    """The ids of what was removed for good after a run had loaded it."""
    missing = {m.id for m in sitting.loaded} - {entry.message.id for entry in entries}
    for branch in await store.branches(session_id) if missing else ():
        logged = await store.entries(session_id, branch=branch.branch)
        missing -= {entry.message.id for entry in logged}
    return missing


def is_gone(message: Message, gone: set[str]) -> bool:
    """Whether a message is one of those that are gone, or a summary of one, which then goes, too."""
    if not gone.isdisjoint(covered_ids(message)):
        gone.add(message.id)
    return message.id in gone


def as_loaded(conversation: list[Message], sitting: Sitting, entries: list[Entry]) -> list[Message]:
    """A conversation with what the run left alone as it is stored, and not as it was shown."""
    shown = {message.id: message for message in sitting.shown}
    stored = {message.id: message for message in sitting.loaded}
    stored |= {entry.message.id: entry.message for entry in entries}  # as a redaction left it
    return [stored.get(m.id, m) if shown.get(m.id) == m else m for m in conversation]


def whole_conversation(conversation: list[Message], sitting: Sitting) -> list[Message]:
    """A conversation with what was only hidden from the run; as the run left it if it rewrote it."""
    shown = len(sitting.shown)
    if shared_length(conversation, sitting) < shown:
        return conversation
    return [*sitting.loaded, *conversation[shown:]]
