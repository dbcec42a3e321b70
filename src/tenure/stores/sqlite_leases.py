"""Leases of the SQLite driver: who may run on a conversation, and who stands in line."""

from __future__ import annotations

from datetime import timedelta

from tenure.clock import Clock
from tenure.stores.base import Lease
from tenure.stores.checks import lease_lost
from tenure.stores.sqlite_rows import Rows


def request(
    rows: Rows, session_id: str, *, holder: str, wait: bool, ttl_s: float, clock: Clock
) -> Lease | None:
    """See `Store.request_lease`."""
    now, expires_at = _at(clock, 0), _at(clock, ttl_s)
    place = {"session_id": session_id, "holder": holder}
    rows.run("drop_expired_tickets", place, now=now)
    if wait and not rows.run("renew_ticket", place, expires_at=expires_at):
        rows.run("add_ticket", place, expires_at=expires_at)
    lease = rows.one("find_lease", place)
    token = int(lease["token"]) if lease is not None else 0
    if lease is not None and lease["holder"] is not None and lease["expires_at"] > now:
        if lease["holder"] != holder:
            return None
    else:
        first = rows.one("first_ticket", place)
        if first is not None and first["holder"] != holder:
            return None
        counted = rows.one("next_token", {})
        assert counted is not None
        token = int(counted["value"])
    rows.run("take_lease", place, token=token, expires_at=expires_at)
    rows.run("drop_ticket", place)
    return Lease(session_id=session_id, holder=holder, token=token)


def renew(rows: Rows, lease: Lease, *, ttl_s: float, clock: Clock) -> bool:
    """See `Store.renew_lease`."""
    held = rows.run("renew_lease", _params(lease), expires_at=_at(clock, ttl_s))
    return held > 0


def release(rows: Rows, session_id: str, *, holder: str) -> None:
    """See `Store.release_lease`."""
    place = {"session_id": session_id, "holder": holder}
    rows.run("release_lease", place)
    rows.run("drop_ticket", place)


def check_lease(rows: Rows, lease: Lease | None) -> None:
    """Let a write pass that needs no lease, or whose lease is still its holder's.

    Raises:
        LeaseLostError: It is somebody else's now.
    """
    if lease is None:
        return
    found = rows.one("find_lease", _params(lease))
    if found is None or (found["holder"], found["token"]) != (lease.holder, lease.token):
        raise lease_lost(lease)


def is_leased(rows: Rows, session_id: str, clock: Clock) -> bool:
    """Whether somebody holds a conversation's lease."""
    found = rows.one("find_lease", {"session_id": session_id})
    return found is not None and found["holder"] is not None and found["expires_at"] > _at(clock, 0)


def _params(lease: Lease) -> dict[str, str | int]:
    return {"session_id": lease.session_id, "holder": lease.holder, "token": lease.token}


def _at(clock: Clock, seconds: float) -> str:
    """A time from now, as text that sorts."""
    return (clock.now() + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
