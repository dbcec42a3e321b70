"""Conditions on metadata: what holds, what does not, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import InvalidValueError
from tenure.conditions import condition

DATA: dict[str, Any] = {
    "type": "project",
    "n": 5,
    "half": 2.5,
    "done": True,
    "none": None,
    "tags": ["a", 1],
    "home": {"city": "Rome", "floor": {"n": 3}},
    "a.b": "dotted",
    "$cost": 7,
}


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"type": "project"},
        {"type": {"$eq": "project"}, "n": 5},
        {"n": 5.0},
        {"n": {"$ne": 6}},
        {"n": {"$gt": 4, "$gte": 5, "$lt": 6, "$lte": 5}},
        {"type": {"$gt": "a", "$lt": "z"}},
        {"half": {"$gt": 2}},
        {"n": {"$in": [1, 5]}},
        {"n": {"$nin": [1, 2]}},
        {"none": None},
        {"none": {"$exists": True}},
        {"other": {"$exists": False}},
        {"other": {"$ne": 1}},
        {"other": {"$nin": [1]}},
        {"other": {"$not": {"$gt": 1}}},
        {"tags": ["a", 1]},
        {"home": {"city": "Rome", "floor": {"n": 3}}},
        {"home.city": "Rome", "home.floor.n": {"$gte": 3}},
        {"a\\.b": "dotted"},
        {"\\$cost": 7},
        {"$and": [{"n": 5}, {"type": "project"}]},
        {"$and": []},
        {"$or": [{"n": 6}, {"type": "project"}]},
        {"$not": {"n": 6}},
        {"n": {"$not": {"$gt": 5}}},
    ],
)
def test_what_holds(where: dict[str, Any]) -> None:
    """Each operator, on keys that are there, null, inside another mapping, or missing (C42, C44)."""
    assert condition(where)(DATA)
    assert not condition({"$not": where})(DATA)


@pytest.mark.parametrize(
    "where",
    [
        {"type": "note"},
        {"n": "5"},
        {"n": True},
        {"done": 1},
        {"done": {"$in": [1]}},
        {"none": 0},
        {"none": {"$gt": 0}},
        {"none": {"$exists": False}},
        {"n": {"$gt": "4"}},
        {"type": {"$gt": 4}},
        {"done": {"$gt": 0}},
        {"n": {"$gt": 4, "$lt": 5}},
        {"other": 1},
        {"other": None},
        {"other": {"$gt": 1}},
        {"other": {"$in": [None]}},
        {"home.street": "x"},
        {"type.length": 7},
        {"a.b": "dotted"},
        {"tags": ["a"]},
        {"home": {"city": "Rome"}},
        {"$or": []},
        {"x') OR 1=1 --": 1},
    ],
)
def test_what_does_not_hold(where: dict[str, Any]) -> None:
    """A value of another type is never equal or in order, and an unknown key is no free pass (C37, C43)."""
    assert not condition(where)(DATA)


@pytest.mark.parametrize(
    "where",
    [
        {"$where": "1"},
        {"n": {"$regex": "."}},
        {"n": {"$gt": None}},
        {"n": {"$gt": [1]}},
        {"n": {"$in": "ab"}},
        {"n": {"$in": 1}},
        {"n": {"$exists": 1}},
        {"n": {"$gt": 1, "plain": 2}},
        {"$and": {"n": 1}},
        {"$or": [1]},
        {"$not": 1},
        {1: 2},
        "n",
        None,
        [("n", 1)],
    ],
)
def test_what_is_refused(where: Any) -> None:
    """A mistake is told, never ignored."""
    with pytest.raises(InvalidValueError):
        condition(where)


def test_deep_conditions_are_refused() -> None:
    """Nesting beyond reason is an error of ours, not of Python's stack."""
    deep: dict[str, Any] = {"n": 1}
    for _ in range(10_000):
        deep = {"$not": deep}
    with pytest.raises(InvalidValueError, match="nested"):
        condition(deep)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4), values)
def test_asking_never_raises(metadata: dict[str, Any], wanted: Any) -> None:
    """Whatever the metadata holds, a condition answers; a value equals itself."""
    for operator in ("$eq", "$ne", "$in", "$nin"):
        value = [wanted] if operator in ("$in", "$nin") else wanted
        assert condition({"k": {operator: value}})(metadata) in (True, False)
    assert condition({"k": {"$eq": wanted}})({"k": wanted})
    assert condition({"k": {"$gt": 1}})(metadata) in (True, False)
