"""Memories of the SQLite driver: what the operations of a `MemoryStore` do on a connection.

`memory_base.py` says what they promise; `sqlite_memory_store.py` calls them in the engine's threads.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from tenure.clock import Clock
from tenure.memory import (
    ALL,
    Memory,
    MemoryChanges,
    MemoryFilter,
    Order,
    OrderBy,
    Owner,
    sameness,
)
from tenure.stores.memory_records import Prepared, from_record, metadata_of, next_version, prepared
from tenure.stores.sqlite_rows import Rows, Value
from tenure.terms import TERMS_VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_REMOVALS = 4_096  # told to others one by one; of more, they begin anew


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """What the rows of an owner go by."""

    owner: int
    uid: str
    user_id: str | None
    generation: int  # of the embedder whose vectors answer; 0 while there is none
    told_since: int
    terms_version: int


def owners(rows: Rows, owner: Owner) -> list[OwnerRow]:
    """Return the row of an owner, if it has ever had a memory; those of all users, if that is meant."""
    if owner.all_users:
        found = rows.all("memory_owners_of_agent", {"agent_id": owner.agent_id})
    else:
        name = {"agent_id": owner.agent_id, "user_id": owner.user_id or ""}
        found = rows.all("memory_owner", name)
    return [
        OwnerRow(
            owner=row["owner"],
            uid=row["uid"],
            user_id=row["user_id"] or None,
            generation=row["generation"] or 0,
            told_since=row["told_since"],
            terms_version=row["terms_version"],
        )
        for row in found
    ]


def created_owner(rows: Rows, owner: Owner, clock: Clock) -> OwnerRow:
    """Return the row of an owner, made if need be."""
    if not (found := owners(rows, owner)):
        new = {"agent_id": owner.agent_id, "user_id": owner.user_id or "", "uid": clock.new_id()}
        rows.run("add_memory_owner", new, terms_version=TERMS_VERSION)
        found = owners(rows, owner)
    return found[0]


# --- writing -------------------------------------------------------------------------------------


def add(
    rows: Rows, owner: Owner, new: Sequence[Prepared], *, deduplicate: bool, clock: Clock
) -> list[Memory]:
    """See `MemoryStore.add`."""
    if not new:
        return []
    row = created_owner(rows, owner, clock)
    last = next_revs(rows, len(new))
    added: list[Memory] = []
    for number, item in enumerate(new, last - len(new) + 1):
        same = sameness(item.memory)
        found = rows.one("find_same_memory", {"owner": row.owner, "sameness": same})
        if deduplicate and found is not None:
            added.append(_memory(rows, owner, [row], found))
            continue
        params = {"owner": row.owner, "number": number, "rev": number}
        rows.run("add_memory", _columns(item), sameness=same, **params)
        _add_postings(rows, row, number, item)
        added.append(item.memory)
    return added


def update(
    rows: Rows,
    owner: Owner,
    memory_id: str,
    changes: MemoryChanges,
    *,
    expected_version: int | None,
    now: datetime,
) -> Memory | None:
    """See `MemoryStore.update`."""
    row, found = _found(rows, owner, memory_id)
    if row is None or found is None:
        return None
    before = _memory(rows, owner, [row], found)
    after = next_version(before, changes, now, expected_version=expected_version)
    if after is before:
        return before
    place: dict[str, Value] = {"owner": row.owner, "number": found["number"]}
    rows.run("add_memory_version", place, version=before.version, record=found["record"])
    item = prepared(after)
    rev = next_revs(rows, 1)
    rows.run("change_memory", {**_columns(item), **place}, sameness=sameness(after), rev=rev)
    if after.content_hash == before.content_hash:
        rows.run("touch_vectors", place, rev=rev)
        return after
    _delete_postings(rows, place, found["terms"])
    _add_postings(rows, row, found["number"], item)
    rows.run("delete_vectors", place)
    return after


def delete(rows: Rows, owner: Owner, memory_id: str) -> bool:
    """See `MemoryStore.delete`, but for the journal, which is emptied afterwards."""
    row, found = _found(rows, owner, memory_id)
    if row is None or found is None:
        return False
    _delete(rows, row, [found])
    return True


def clear(rows: Rows, owner: Owner, wanted: MemoryFilter) -> int:
    """See `MemoryStore.clear`, but for the journal, which is emptied afterwards."""
    count = 0
    for row in owners(rows, owner):
        found = list(_listed(rows, row, wanted, "created_at", "asc"))
        _delete(rows, row, found)
        count += len(found)
    return count


def _delete(rows: Rows, row: OwnerRow, found: Sequence[sqlite3.Row]) -> None:
    last = next_revs(rows, len(found)) if found else 0
    for rev, each in enumerate(found, last - len(found) + 1):
        place: dict[str, Value] = {"owner": row.owner, "number": each["number"]}
        _delete_postings(rows, place, each["terms"])
        for query in ("delete_vectors", "delete_memory_versions", "delete_memory"):
            rows.run(query, place)
        rows.run("add_removal", place, rev=rev)
    removals = rows.one("count_removals", {"owner": row.owner})
    if removals is not None and removals["count"] > _REMOVALS:
        rows.run("forget_removals", {"owner": row.owner})
        rows.run("set_told_since", {"owner": row.owner, "rev": removals["rev"]})


def reindex(rows: Rows, owner: Owner) -> None:
    """Make the terms of all memories anew, where another version of `terms.py` has made them."""
    for row in owners(rows, owner):
        if row.terms_version == TERMS_VERSION:
            continue
        found = list(_listed(rows, row, ALL, "created_at", "asc"))
        last = next_revs(rows, len(found)) if found else 0
        for rev, each in enumerate(found, last - len(found) + 1):
            place: dict[str, Value] = {"owner": row.owner, "number": each["number"]}
            item = prepared(memory_of(rows, owner, row, each["record"]))
            _delete_postings(rows, place, each["terms"])
            _add_postings(rows, row, each["number"], item)
            same = sameness(item.memory)
            rows.run("change_memory", {**_columns(item), **place}, sameness=same, rev=rev)
            rows.run("touch_vectors", place, rev=rev)
        rows.run("set_terms_version", {"owner": row.owner, "terms_version": TERMS_VERSION})


# --- reading -------------------------------------------------------------------------------------


def get(rows: Rows, owner: Owner, memory_id: str) -> Memory | None:
    """See `MemoryStore.get`."""
    row, found = _found(rows, owner, memory_id)
    return None if row is None or found is None else _memory(rows, owner, [row], found)


def listed(
    rows: Rows,
    owner: Owner,
    wanted: MemoryFilter,
    *,
    limit: int | None,
    offset: int,
    order_by: OrderBy,
    order: Order,
) -> list[Memory]:
    """See `MemoryStore.list`."""
    known = owners(rows, owner)
    of_each = [_listed(rows, row, wanted, order_by, order) for row in known]
    found = merge(*of_each, key=lambda r: (r[order_by], r["id"]), reverse=order == "desc")
    end = None if limit is None else offset + limit
    return [_memory(rows, owner, known, row) for row in islice(found, offset, end)]


def count(rows: Rows, owner: Owner, wanted: MemoryFilter) -> int:
    """See `MemoryStore.count`."""
    known = owners(rows, owner)
    if wanted.where is not None:
        return sum(1 for row in known for _ in _listed(rows, row, wanted, "created_at", "asc"))
    counts = (rows.one("count_memories", _params(row, wanted)) for row in known)
    return sum(int(found["count"]) for found in counts if found is not None)


def history(rows: Rows, owner: Owner, memory_id: str) -> list[Memory]:
    """See `MemoryStore.history`."""
    row, found = _found(rows, owner, memory_id)
    if row is None or found is None:
        return []
    place = {"owner": row.owner, "number": found["number"]}
    records = [str(each["record"]) for each in rows.all("memory_versions", place)]
    return [memory_of(rows, owner, row, record) for record in [*records, found["record"]]]


def memory_of(
    rows: Rows,
    owner: Owner,
    row: OwnerRow,
    record: str,
    *,
    embedding: NDArray[np.float32] | None = None,
) -> Memory:
    """Return the memory of a record."""
    return from_record(
        record,
        tenant=rows.tenant,
        agent_id=owner.agent_id,
        user_id=row.user_id,
        embedding=embedding,
    )


def found_by_number(rows: Rows, owner: Owner, known: Sequence[OwnerRow], number: int) -> Memory:
    """Return the memory of a number, which must be there."""
    found = rows.one("find_memory_by_number", {"number": number})
    assert found is not None, number
    return _memory(rows, owner, known, found)


# --- pieces --------------------------------------------------------------------------------------


def _found(rows: Rows, owner: Owner, memory_id: str) -> tuple[OwnerRow | None, sqlite3.Row | None]:
    for row in owners(rows, owner):
        found = rows.one("find_memory", {"owner": row.owner, "id": memory_id})
        if found is not None:
            return row, found
    return None, None


def _listed(
    rows: Rows, row: OwnerRow, wanted: MemoryFilter, order_by: OrderBy, order: Order
) -> Iterator[sqlite3.Row]:
    found = rows.each(f"list_memories_{order_by}_{order}", _params(row, wanted))
    holds = wanted.condition()
    if holds is None:
        return found
    return (each for each in found if holds(metadata_of(each["record"])))


def _memory(rows: Rows, owner: Owner, known: Sequence[OwnerRow], found: sqlite3.Row) -> Memory:
    row = next(row for row in known if row.owner == found["owner"])
    place = {"owner": row.owner, "generation": row.generation, "number": found["number"]}
    vector = rows.one("find_vector", place) if row.generation else None
    embedding = None
    if vector is not None:
        import numpy as np

        embedding = np.frombuffer(vector["vector"], "<f4")
    return memory_of(rows, owner, row, found["record"], embedding=embedding)


def _params(row: OwnerRow, wanted: MemoryFilter) -> dict[str, Value]:
    return {
        "owner": row.owner,
        "graph_id": wanted.graph_id,
        "task_id": wanted.task_id,
        "session_id": wanted.session_id,
        "speaker": wanted.speaker,
        "start_date": _iso(wanted.start_date),
        "end_date": _iso(wanted.end_date),
        "as_of": _iso(wanted.as_of),
    }


def _columns(item: Prepared) -> dict[str, Value]:
    memory = item.memory
    return {
        "id": memory.id,
        "graph_id": memory.graph_id,
        "task_id": memory.task_id,
        "session_id": memory.session_id,
        "speaker": memory.speaker,
        "created_at": _iso(memory.created_at),
        "updated_at": _iso(memory.updated_at),
        "valid_from": _iso(memory.valid_from),
        "valid_to": _iso(memory.valid_to),
        "content_hash": memory.content_hash,
        "record": item.record,
        "terms": item.terms,
        "length": item.length,
        "asks": item.asks,
    }


def _add_postings(rows: Rows, row: OwnerRow, number: int, item: Prepared) -> None:
    postings = (
        {"owner": row.owner, "number": number, "term": term, "tf": tf}
        for term, tf in item.counts.items()
    )
    rows.run_many("add_posting", postings)


def _delete_postings(rows: Rows, place: dict[str, Value], terms: str) -> None:
    rows.run_many("delete_posting", ({**place, "term": term} for term in json.loads(terms)))


def next_revs(rows: Rows, count: int) -> int:
    """Draw so many numbers in a row; returns the last one."""
    found = rows.one("next_memory_rev", {"count": count})
    assert found is not None
    return int(found["value"])


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="microseconds")
