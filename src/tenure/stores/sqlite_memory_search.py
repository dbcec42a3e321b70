"""Vectors and search of the SQLite driver, on a connection. `sqlite_memories.py` has everything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tenure.clock import Clock
from tenure.memory import Owner
from tenure.stores.index_source import IndexedMemory, micros
from tenure.stores.memory_base import Embedded, EmbedderRecord, Found, MemoryQuery, Unembedded
from tenure.stores.memory_checks import checked_dimensions, other_dimensions
from tenure.stores.memory_records import content_of, indexed
from tenure.stores.sqlite_memories import (
    OwnerRow,
    created_owner,
    found_by_number,
    next_revs,
    owners,
)
from tenure.stores.sqlite_rows import Rows
from tenure.terms import TERMS_VERSION

if TYPE_CHECKING:
    from tenure.stores.index_cache import IndexCache

# --- search --------------------------------------------------------------------------------------


class RowSource:
    """What an index is told, from the rows of one owner, or of all of an agent's."""

    def __init__(self, rows: Rows, known: Sequence[OwnerRow]) -> None:
        self._rows = rows
        self._owners = [row.owner for row in known]
        self._told_since = max(row.told_since for row in known)

    def renew(self) -> None:
        self._rows.renew()

    def latest(self) -> int:
        found = self._rows.one("last_memory_rev", {})
        return int(found["value"]) if found is not None else 0

    def told_since(self) -> int:
        return self._told_since

    def removed(self, after: int) -> Iterable[int]:
        for owner in self._owners:
            for row in self._rows.each("removals", {"owner": owner, "rev": after}):
                yield row["number"]

    def changed(self, after: int) -> Iterator[IndexedMemory]:
        for owner in self._owners:
            for row in self._rows.each("changed_memories", {"owner": owner, "rev": after}):
                yield indexed(
                    row["number"],
                    row["record"],
                    terms=row["terms"],
                    length=row["length"],
                    asks=bool(row["asks"]),
                )

    def vectors(self, identity: str, after: int) -> Iterator[tuple[int, bytes]]:
        embedder = self._rows.one("find_embedder", {"identity": identity})
        for owner in self._owners if embedder is not None else ():
            assert embedder is not None
            place = {"owner": owner, "generation": embedder["generation"], "rev": after}
            for row in self._rows.each("changed_vectors", place):
                yield row["number"], row["vector"]

    def postings(self, term: str) -> Iterator[tuple[int, int]]:
        for owner in self._owners:
            for row in self._rows.all("postings", {"owner": owner, "term": term}):
                yield row["number"], row["tf"]


def search(
    rows: Rows, owner: Owner, query: MemoryQuery, *, cache: IndexCache, now: datetime
) -> Found | None:
    """See `MemoryStore.search`; None when the memories have to be indexed anew first."""
    if not (known := owners(rows, owner)):
        return Found(memories=[])
    if any(row.terms_version != TERMS_VERSION for row in known):
        return None
    identity = query.identity if query.vector is not None else None
    source = RowSource(rows, known)
    with cache.index(tuple((row.owner, row.uid) for row in known)) as index:
        index.refresh(source, identity)
        hits, pending = index.search(query, source, now=micros(now))
    memories = [
        replace(
            found_by_number(rows, owner, known, hit.number),
            score=hit.score,
            signals=hit.signals if query.explain else None,
        )
        for hit in hits
    ]
    return Found(memories=memories, pending=pending)


# --- vectors -------------------------------------------------------------------------------------


def embedder(rows: Rows, owner: Owner) -> EmbedderRecord | None:
    """See `MemoryStore.embedder`."""
    for row in owners(rows, owner):
        found = rows.one("find_generation", {"generation": row.generation})
        if found is not None:
            identity, name, dimensions = found["identity"], found["name"], found["dimensions"]
            return EmbedderRecord(identity=identity, name=name, dimensions=dimensions)
    return None


def use_embedder(rows: Rows, owner: Owner, record: EmbedderRecord, *, clock: Clock) -> bool:
    """See `MemoryStore.use_embedder`."""
    generation = _generation(rows, record)
    row = created_owner(rows, owner, clock)
    place = {"owner": row.owner, "generation": generation}
    if rows.one("unembedded_memories", place, after="", limit=1) is not None:
        return False
    rows.run("set_generation", place)
    rows.run("delete_other_generations", place)
    return True


def unembedded(
    rows: Rows, owner: Owner, identity: str, *, limit: int | None, after: str | None
) -> list[Unembedded]:
    """See `MemoryStore.unembedded`."""
    found: list[Unembedded] = []
    for place in _places(rows, owner, identity):
        left = -1 if limit is None else limit - len(found)
        for each in rows.all("unembedded_memories", place, after=after or "", limit=left):
            content, digest = content_of(each["record"])
            found.append(Unembedded(id=each["id"], content=content, content_hash=digest))
    return found


def count_unembedded(rows: Rows, owner: Owner, identity: str) -> int:
    """See `MemoryStore.count_unembedded`."""
    counts = (rows.one("count_unembedded", place) for place in _places(rows, owner, identity))
    return sum(int(found["count"]) for found in counts if found is not None)


def set_vectors(
    rows: Rows, owner: Owner, record: EmbedderRecord, embedded: Sequence[Embedded]
) -> int:
    """See `MemoryStore.set_vectors`."""
    known = owners(rows, owner)
    if not known or not embedded:
        return 0
    checked_dimensions(record, embedded)
    place = {"owner": known[0].owner, "generation": _generation(rows, record)}
    last = next_revs(rows, len(embedded))
    stored = 0
    for rev, each in enumerate(embedded, last - len(embedded) + 1):
        params = {**place, "rev": rev, "id": each.id, "content_hash": each.content_hash}
        stored += rows.run("set_vector", params, vector=each.vector.astype("<f4").tobytes())
    if stored and not known[0].generation:
        rows.run("set_generation", place)
    return stored


def _places(rows: Rows, owner: Owner, identity: str) -> list[dict[str, int]]:
    """Where the vectors of an embedder are, for each owner; generation 0 has none."""
    known = rows.one("find_embedder", {"identity": identity})
    generation = known["generation"] if known is not None else 0
    return [{"owner": row.owner, "generation": generation} for row in owners(rows, owner)]


def _generation(rows: Rows, record: EmbedderRecord) -> int:
    """Return the number of an embedder's vectors, from 1; it is recorded if need be."""
    named = {"identity": record.identity}
    found = rows.one("find_embedder", named)
    if found is None:
        rows.run("add_embedder", named, name=record.name, dimensions=record.dimensions)
        found = rows.one("find_embedder", named)
    assert found is not None
    if found["dimensions"] != record.dimensions:
        raise other_dimensions(record, found["dimensions"])
    return int(found["generation"])
