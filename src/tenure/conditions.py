"""Conditions on metadata: `{"type": "project", "budget": {"$gte": 50}}`, checked once, asked often.

A condition is a mapping. Each key is a key of the metadata (with dots into nested mappings), each value
what it has to be: a JSON value, or a mapping of operators. All keys have to hold.

    {"type": "project"}                              equal, as in JSON: true is no number
    {"budget": {"$gt": 1, "$lte": 9}}                $gt $gte $lt $lte: two numbers, or two texts
    {"type": {"$ne": "note"}}                        $eq $ne
    {"type": {"$in": ["project", "note"]}}           $in $nin
    {"due": {"$exists": False}}                      whether the key is there; null is there
    {"$or": [{"a": 1}, {"b": 2}]}                    $and $or of conditions, $not of one

A key that is not there is equal to nothing and in no order, so `$ne`, `$nin` and `$not` hold for it and
the others do not. In a key that has a dot itself, or begins with `$`, write a backslash before that.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from tenure.errors import InvalidValueError
from tenure.messages import Json

Condition: TypeAlias = Callable[[Mapping[str, Json]], bool]
"""Says whether it holds for some metadata."""

_MAX_DEPTH = 50  # of conditions in one another; a guess, far below Python's own limit
_MISSING = object()
_SEPARATOR = re.compile(r"(?<!\\)\.")


def condition(where: Mapping[str, object]) -> Condition:
    """Return the function that a written condition stands for. An empty one holds for everything.

    Raises:
        InvalidValueError: It has an operator that there is not, or a value that the operator cannot use.
    """
    return _all_of(where, depth=0)


def _all_of(where: object, *, depth: int) -> Condition:
    if not isinstance(where, Mapping):
        raise InvalidValueError(f"The condition {where!r} is no mapping; write {{'key': value}}.")
    if depth > _MAX_DEPTH:
        raise InvalidValueError(f"The condition is nested more than {_MAX_DEPTH} deep; flatten it.")
    parts: list[Condition] = []
    for key, wanted in cast("Mapping[object, object]", where).items():
        if not isinstance(key, str):
            raise InvalidValueError(f"The condition has the key {key!r}; keys are texts.")
        if key in ("$and", "$or"):
            branches = [_all_of(each, depth=depth + 1) for each in _listed(key, wanted)]
            parts.append(partial(_holds_for_all if key == "$and" else _holds_for_any, branches))
        elif key == "$not":
            parts.append(partial(_does_not_hold, _all_of(wanted, depth=depth + 1)))
        elif key.startswith("$"):
            raise InvalidValueError(
                f"There is no operator {key!r} for conditions; there are $and, $or and $not."
            )
        else:
            parts.append(_of_key(key, wanted, depth=depth))
    return parts[0] if len(parts) == 1 else partial(_holds_for_all, parts)


def _of_key(key: str, wanted: object, *, depth: int) -> Condition:
    path = [part.replace("\\.", ".").replace("\\$", "$") for part in _SEPARATOR.split(key)]
    if not _is_operators(wanted):
        return partial(_holds_at, path, [partial(_equal, wanted)])
    tests: list[Callable[[object], bool]] = []
    for name, value in cast("Mapping[str, object]", wanted).items():
        if name == "$not":
            tests.append(_negated(_of_key("value", value, depth=depth + 1)))
        elif name in _TESTS:
            tests.append(partial(_TESTS[name], _checked(name, value)))
        else:
            raise InvalidValueError(
                f"There is no operator {name!r} for the key {key!r}; there are {', '.join(_TESTS)} "
                "and $not."
            )
    return partial(_holds_at, path, tests)


def _is_operators(wanted: object) -> bool:
    if not isinstance(wanted, Mapping) or not wanted:
        return False
    marked = [isinstance(name, str) and name.startswith("$") for name in wanted]  # pyright: ignore[reportUnknownVariableType]
    if any(marked) and not all(marked):
        raise InvalidValueError(
            f"The condition {wanted!r} mixes operators and values; put the values into $eq."
        )
    return all(marked)


def _checked(name: str, value: object) -> object:
    if name in ("$in", "$nin"):
        return _listed(name, value)
    if name == "$exists" and not isinstance(value, bool):
        raise InvalidValueError(f"$exists is True or False, not {value!r}.")
    if name in ("$gt", "$gte", "$lt", "$lte") and not (isinstance(value, str) or _is_number(value)):
        raise InvalidValueError(f"{name} compares numbers or texts, not {value!r}.")
    return value


def _listed(name: str, value: object) -> Sequence[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidValueError(f"{name} takes a list, not {value!r}.")
    return cast("Sequence[object]", value)


# --- asking --------------------------------------------------------------------------------------


def _holds_for_all(parts: Sequence[Condition], metadata: Mapping[str, Json]) -> bool:
    return all(part(metadata) for part in parts)


def _holds_for_any(parts: Sequence[Condition], metadata: Mapping[str, Json]) -> bool:
    return any(part(metadata) for part in parts)


def _does_not_hold(part: Condition, metadata: Mapping[str, Json]) -> bool:
    return not part(metadata)


def _holds_at(
    path: Sequence[str], tests: Sequence[Callable[[object], bool]], metadata: Mapping[str, Json]
) -> bool:
    found: object = metadata
    for key in path:
        found = _within(found, key)
    return all(test(found) for test in tests)


def _within(found: object, key: str) -> object:
    return (
        cast("Mapping[str, object]", found).get(key, _MISSING)
        if isinstance(found, Mapping)
        else _MISSING
    )


def _negated(part: Condition) -> Callable[[object], bool]:
    def test(found: object) -> bool:
        return not part({} if found is _MISSING else {"value": found})  # pyright: ignore[reportArgumentType]

    return test


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(wanted: object, found: object) -> bool:
    """Whether two JSON values are equal; unlike in Python, true is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        ours, theirs = cast("Mapping[str, object]", wanted), cast("Mapping[str, object]", found)
        return ours.keys() == theirs.keys() and all(_equal(ours[k], theirs[k]) for k in ours)
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        pairs = zip(cast("Sequence[object]", wanted), cast("Sequence[object]", found), strict=False)
        return len(wanted) == len(found) and all(_equal(a, b) for a, b in pairs)  # pyright: ignore[reportUnknownArgumentType]
    return wanted == found


def _ordered(compare: Callable[[Any, Any], bool], wanted: object, found: object) -> bool:
    both_texts = isinstance(wanted, str) and isinstance(found, str)
    return (both_texts or (_is_number(wanted) and _is_number(found))) and compare(found, wanted)


def _among(wanted: object, found: object) -> bool:
    return any(_equal(each, found) for each in cast("Sequence[object]", wanted))


_TESTS: dict[str, Callable[[object, object], bool]] = {
    "$eq": _equal,
    "$ne": lambda wanted, found: not _equal(wanted, found),
    "$gt": partial(_ordered, operator.gt),
    "$gte": partial(_ordered, operator.ge),
    "$lt": partial(_ordered, operator.lt),
    "$lte": partial(_ordered, operator.le),
    "$in": _among,
    "$nin": lambda wanted, found: not _among(wanted, found),
    "$exists": lambda wanted, found: (found is not _MISSING) is wanted,
}
"""Each is asked with what is wanted and what was found."""
