"""The empty mapping of everything that was given none: one object, which cannot be changed.

It is equal to `{}`, is JSON, and is itself after copying and pickling. Whoever wants to add to it makes
a new one: `replace(message, metadata={**message.metadata, "key": "value"})`.
"""

from __future__ import annotations

from typing import Never


class _EmptyMapping(dict[str, Never]):
    """A dict that stays empty."""

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError(
            "This empty mapping is shared and cannot be changed; give the value a new one with "
            "dataclasses.replace()."
        )

    # Taking any arguments is all the same, since none will do.
    __setitem__ = setdefault = update = __ior__ = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> str:
        return "EMPTY"


EMPTY = _EmptyMapping()
"""The only one."""


def empty() -> _EmptyMapping:
    """Return `EMPTY`: the default factory of a field."""
    return EMPTY
