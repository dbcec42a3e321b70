"""What every driver checks in the same way of owners, queries and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from tenure.errors import InvalidValueError, UsageError
from tenure.memory import Order, OrderBy, Owner
from tenure.stores.checks import checked_count, checked_limit, checked_name
from tenure.stores.memory_base import Embedded, EmbedderRecord, MemoryQuery
from tenure.stores.records import Participant


def checked_owner(owner: Owner) -> Owner:
    """Return an owner that every driver can keep apart.

    Raises:
        InvalidValueError: A name is empty, or cannot be kept.
    """
    for what, name in (("agent_id", owner.agent_id), ("user_id", owner.user_id)):
        if name is None and what == "user_id":
            continue
        if not isinstance(name, str) or not name:
            raise InvalidValueError(f"{what}={name!r} is no name; give a text that is not empty.")
        checked_name(name, what)
    if owner.all_users and owner.user_id is not None:
        raise InvalidValueError(
            f"all_users=True reads every user's memories; leave out user_id={owner.user_id!r}."
        )
    return owner


def checked_labels(**labels: str | None) -> None:
    """Refuse labels, by their names, that no memory can have.

    Raises:
        InvalidValueError: One is no text, empty, or cannot be kept.
    """
    for name, label in labels.items():
        if label is None:
            continue
        if not isinstance(label, str) or not label:  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(f"{name}={label!r} must be a text that is not empty, or None.")
        checked_name(label, name)


def checked_writer(owner: Owner) -> Owner:
    """Return an owner who can write.

    Raises:
        InvalidValueError: A name is empty, or cannot be kept.
        UsageError: It stands for all users.
    """
    refuse_writing(checked_owner(owner))
    return owner


def checked_participant(by: Participant | None, run_id: str | None) -> Participant | None:
    """Return who writes in a run.

    Raises:
        InvalidValueError: The owner is none, or there is no run.
        UsageError: It is a handle on all users.
    """
    if by is not None:
        checked_writer(by.owner)
        if run_id is None:
            raise InvalidValueError("by= says who writes in a run; give its run_id, too.")
    return by


def refuse_writing(owner: Owner) -> None:
    """Refuse to write through a handle on all users.

    Raises:
        UsageError: It is one.
    """
    if owner.all_users:
        raise UsageError(
            f"A handle on all users of the agent {owner.agent_id!r} only reads; open one with the "
            "user_id whose memories you want to change."
        )


def checked_order_by(order_by: OrderBy) -> OrderBy:
    """Return the time by which memories are ordered.

    Raises:
        InvalidValueError: It is none; by relevance only a search orders.
    """
    if order_by not in ("created_at", "updated_at"):
        raise InvalidValueError(f"order_by={order_by!r} must be 'created_at' or 'updated_at'.")
    return order_by


def checked_order(order: Order) -> Order:
    """Return a direction.

    Raises:
        InvalidValueError: It is none.
    """
    if order not in ("asc", "desc"):
        raise InvalidValueError(f"order={order!r} must be 'asc' or 'desc'.")
    return order


def checked_query(query: MemoryQuery) -> MemoryQuery:
    """Return a query that can be worked with.

    Raises:
        InvalidValueError: It has a value that cannot; the text says which.
    """
    limit, offset = checked_limit(query.limit), checked_count(query.offset, "offset")
    if query.order_by != "relevance":
        checked_order_by(query.order_by)
    checked_order(query.order)
    if query.metric not in (None, "cosine", "euclidean"):
        raise InvalidValueError(f"metric={query.metric!r} must be 'cosine' or 'euclidean'.")
    if query.vector is not None:
        if query.identity is None or query.vector.ndim != 1:
            raise InvalidValueError("A query's vector is one row of numbers, of a known embedder.")
        if not isfinite(float(query.vector.sum())):
            raise InvalidValueError("The query's vector has a number that is not finite.")
    return replace(query, filter=query.filter.checked(), limit=limit, offset=offset)


def checked_dimensions(record: EmbedderRecord, embedded: Sequence[Embedded]) -> None:
    """Check that vectors are what their embedder's are.

    Raises:
        InvalidValueError: One has other dimensions.
    """
    for each in embedded:
        if each.vector.shape != (record.dimensions,):
            raise InvalidValueError(
                f"A vector of the embedder {record.identity!r} has the shape "
                f"{each.vector.shape}, and not ({record.dimensions},); nothing was stored."
            )


def other_dimensions(record: EmbedderRecord, known: int) -> InvalidValueError:
    """The error of an embedder that has changed its dimensions but not its identity."""
    return InvalidValueError(
        f"The embedder {record.identity!r} had {known} dimensions before and has "
        f"{record.dimensions} now; give it another identity."
    )
