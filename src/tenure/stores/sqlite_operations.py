"""How the store in SQLite runs an operation: on the engine's threads, on the rows of its tenant."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from tenure.stores.sqlite_engine import Engine
from tenure.stores.sqlite_memo import Memo
from tenure.stores.sqlite_rows import Rows

T = TypeVar("T")
P = ParamSpec("P")


class Operating:
    """The part of the store that reads, writes and erases."""

    tenant: str
    _engine: Engine
    _memo: Memo

    async def _write(
        self, operation: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._engine.write(self._bound(operation, *args, **kwargs))

    async def _read(
        self, operation: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._engine.read(self._bound(operation, *args, **kwargs))

    def _bound(
        self, operation: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[sqlite3.Connection], T]:
        tenant, memo = self.tenant, self._memo
        return lambda connection: operation(Rows(connection, tenant, memo), *args, **kwargs)

    async def _erasing(
        self, operation: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do what removes text, and leave none of it in the journal and in RAM, whoever is cancelled.

        The memo is emptied last: while somebody may read the old state, they could fill it again.
        """
        try:
            erased = await self._write(operation, *args, **kwargs)
            await self._engine.empty_journal()
        except asyncio.CancelledError:
            self._engine.begin_emptying_journal()
            raise
        finally:
            self._memo.clear()
        return erased
