"""One connection, one tenant: how the functions of the SQLite driver run the queries of `sqlite.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TypeAlias

from tenure.stores.migrations import named_queries
from tenure.stores.sqlite_memo import Memo

Value: TypeAlias = str | int | bytes | None


class Rows:
    """Runs named queries, each with the tenant among its parameters."""

    def __init__(self, connection: sqlite3.Connection, tenant: str, memo: Memo) -> None:
        self.memo = memo
        self.tenant = tenant
        self._connection = connection
        self._queries = _queries()

    def one(self, query: str, params: Mapping[str, Value], **more: Value) -> sqlite3.Row | None:
        """Return the first row, or None."""
        return self._execute(query, params, more).fetchone()

    def all(self, query: str, params: Mapping[str, Value], **more: Value) -> list[sqlite3.Row]:
        """Return all rows, in the query's order."""
        return self._execute(query, params, more).fetchall()

    def each(self, query: str, params: Mapping[str, Value]) -> Iterator[sqlite3.Row]:
        """Return the rows one by one, in the query's order; before the next write."""
        return self._execute(query, params, {})

    def renew(self) -> None:
        """Look at the newest state from now on; in an operation that only reads."""
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def run(self, query: str, params: Mapping[str, Value], **more: Value) -> int:
        """Run a query that returns no rows; return how many it has changed."""
        return self._execute(query, params, more).rowcount

    def run_many(self, query: str, many: Iterable[Mapping[str, Value]]) -> None:
        """Run a query that returns no rows, once for each of many parameters."""
        tenant = {"tenant": self.tenant}
        self._connection.executemany(
            self._queries[query], [{**params, **tenant} for params in many]
        )

    def _execute(
        self, query: str, params: Mapping[str, Value], more: Mapping[str, Value]
    ) -> sqlite3.Cursor:
        return self._connection.execute(
            self._queries[query], {**params, **more, "tenant": self.tenant}
        )


@cache
def _queries() -> Mapping[str, str]:
    files = ("sqlite.sql", "sqlite_memories.sql", "sqlite_owners.sql", "sqlite_runs.sql")
    return {name: query for file in files for name, query in named_queries(file).items()}
