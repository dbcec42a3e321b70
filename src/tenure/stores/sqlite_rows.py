"""One connection, one tenant: how the functions of the SQLite driver run the queries of `sqlite.sql`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeAlias

from tenure.stores.migrations import named_queries
from tenure.stores.sqlite_memo import Memo

Value: TypeAlias = str | int | bytes | None
Row: TypeAlias = dict[str, Any]
"""One row by column; what is in a column, the schema says."""


class Rows:
    """Runs named queries, each with the tenant among its parameters."""

    def __init__(self, connection: sqlite3.Connection, tenant: str, memo: Memo) -> None:
        self.memo = memo
        self._connection = connection
        self._tenant = tenant
        self._queries = named_queries("sqlite.sql")

    def one(self, query: str, params: Mapping[str, Value], **more: Value) -> Row | None:
        """Return the first row, or None."""
        rows = self.all(query, params, **more)
        return rows[0] if rows else None

    def all(self, query: str, params: Mapping[str, Value], **more: Value) -> list[Row]:
        """Return all rows, in the query's order."""
        cursor = self._execute(query, params, more)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def run(self, query: str, params: Mapping[str, Value], **more: Value) -> int:
        """Run a query that returns no rows; return how many it has changed."""
        return self._execute(query, params, more).rowcount

    def _execute(
        self, query: str, params: Mapping[str, Value], more: Mapping[str, Value]
    ) -> sqlite3.Cursor:
        return self._connection.execute(
            self._queries[query], {**params, **more, "tenant": self._tenant}
        )
