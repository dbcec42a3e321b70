"""What every driver checks in the same way of runs, checkpoints and calls."""

from __future__ import annotations

from tenure.errors import InvalidValueError
from tenure.stores.checks import MOST, checked_name
from tenure.stores.run_records import NewCall, NewCheckpoint


def checked_run_id(run_id: str) -> str:
    """Return the name of a run, if every driver can keep it.

    Raises:
        InvalidValueError: It has a NUL or half a surrogate pair.
    """
    return checked_name(run_id, "run id")


def checked_text(text: str, what: str) -> str:
    """Return a text; every driver keeps any.

    Raises:
        InvalidValueError: It is none.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        raise InvalidValueError(f"{what}= must be a text, and not a {type(text).__name__}.")
    return text


def checked_checkpoint(checkpoint: NewCheckpoint) -> NewCheckpoint:
    """Return a checkpoint that can be saved.

    Raises:
        InvalidValueError: Its id cannot be kept, or something is no text.
    """
    checked_name(checkpoint.checkpoint_id, "checkpoint id")
    checked_text(checkpoint.node_path, "node_path")
    checked_text(checkpoint.scope, "scope")
    checked_text(checkpoint.state, "state")
    return checkpoint


def checked_call(call: NewCall) -> NewCall:
    """Return a call that can be recorded.

    Raises:
        InvalidValueError: A number is negative or too great, or something is no text.
    """
    for what, number in (("position", call.position), ("place", call.place)):
        if not 0 <= number <= MOST:
            raise InvalidValueError(f"{what}={number!r} must be a number from 0.")
    checked_text(call.node_path, "node_path")
    checked_text(call.origin, "origin")
    checked_text(call.tool, "tool")
    checked_text(call.args, "args")
    return call


def checked_keep_last(keep_last: int | None) -> int | None:
    """Return how many checkpoints to keep; None is all.

    Raises:
        InvalidValueError: It is less than 1.
    """
    if keep_last is not None and keep_last < 1:
        raise InvalidValueError(
            f"keep_last={keep_last!r} must be at least 1; leave it out to keep all checkpoints."
        )
    return None if keep_last is None else min(keep_last, MOST)


def known_checkpoint(checkpoint_id: str) -> InvalidValueError:
    """The error of a checkpoint that is there already."""
    return InvalidValueError(
        f"The run has a checkpoint {checkpoint_id!r} already; give each one an id of its own."
    )


def unknown_version(run_id: str, version: int) -> InvalidValueError:
    """The error of going back to a checkpoint that is not there."""
    return InvalidValueError(
        f"The run {run_id!r} has no checkpoint of version {version}; `checkpoints` gives those that it has."
    )


def checked_number(number: int) -> int:
    """Return a version or the number of a call, which may be of none, as one that every driver takes."""
    return max(-1, min(number, MOST))
