"""Leases of the store in RAM: who may run on a conversation, and who stands in line for it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta

from tenure.clock import Clock
from tenure.errors import StoreClosedError
from tenure.stores.base import Lease
from tenure.stores.checks import checked_name, checked_session_id, lease_lost
from tenure.stores.inmemory_log import Shelf, Turn


class Leasing:
    """The part of the store that gives leases, and fences writes with them."""

    tenant: str
    lease_ttl_s: float
    _clock: Clock
    _shelf: Shelf

    async def request_lease(self, session_id: str, *, holder: str, wait: bool) -> Lease | None:
        checked_session_id(session_id)
        checked_name(holder, "holder")
        with self._locked() as now:
            turn = self._shelf.turns.setdefault((self.tenant, session_id), Turn())
            turn.line = {name: expiry for name, expiry in turn.line.items() if expiry > now}
            if wait:
                turn.line[holder] = self._expiry()
            if self._is_held(turn):
                if turn.holder != holder:
                    return None
            elif next(iter(turn.line), holder) != holder:
                return None
            else:
                self._shelf.last_token += 1
                turn.token = self._shelf.last_token
            turn.holder, turn.expires_at = holder, self._expiry()
            turn.line.pop(holder, None)
            return Lease(session_id=session_id, holder=holder, token=turn.token)

    def renew_lease(self, lease: Lease) -> bool:
        with self._locked():
            turn = self._turn_of(lease)
            if turn is not None:
                turn.expires_at = self._expiry()
            return turn is not None

    async def release_lease(self, session_id: str, *, holder: str) -> None:
        with self._locked():
            turn = self._shelf.turns.get((self.tenant, session_id))
            if turn is not None:
                turn.line.pop(holder, None)
                if turn.holder == holder:
                    turn.holder = turn.expires_at = None
                if turn.holder is None and not turn.line:
                    del self._shelf.turns[self.tenant, session_id]

    # --- pieces ---

    @contextmanager
    def _locked(self, lease: Lease | None = None) -> Generator[datetime]:
        with self._shelf.lock:
            if self._shelf.is_closed:
                raise StoreClosedError
            if lease is not None and self._turn_of(lease) is None:
                raise lease_lost(lease)
            yield self._clock.now()  # one operation, one time

    def _expiry(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self.lease_ttl_s)

    def _is_held(self, turn: Turn) -> bool:
        return turn.expires_at is not None and turn.expires_at > self._clock.now()

    def _turn_of(self, lease: Lease) -> Turn | None:
        """The turn that a lease is for, unless the lease is lost."""
        turn = self._shelf.turns.get((self.tenant, lease.session_id))
        held = turn is not None and (turn.holder, turn.token) == (lease.holder, lease.token)
        return turn if held else None
