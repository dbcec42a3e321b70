"""The log of the SQLite driver: what its writes do, on a connection, in a transaction.

`base.py` says what they promise; `sqlite_history.py` has what a history is and how it is read, and
`sqlite_runs.py` what runs log before they have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.clock import Clock
from tenure.messages import Usage
from tenure.stores.base import Appended, Lease, OnConflict, Redaction
from tenure.stores.checks import (
    busy,
    checked_after,
    checked_redacted,
    conflict,
    existing,
    reply_usage,
)
from tenure.stores.sqlite_history import (
    FAILED,
    MESSAGE,
    Head,
    Segment,
    count,
    find,
    head_at,
    known,
    lineage,
    unknown_to,
)
from tenure.stores.sqlite_leases import check_lease, is_leased
from tenure.stores.sqlite_media import Packed, drop_unused, keep_media, pack, unpack
from tenure.stores.sqlite_rows import Rows, Value

# --- writing -------------------------------------------------------------------------------------


def append(
    rows: Rows,
    session_id: str,
    packed: Sequence[Packed],
    *,
    run_id: str | None,
    is_failed: bool,
    expected_revision: int | None,
    on_conflict: OnConflict,
    archive: Sequence[Packed],
    lease: Lease | None,
    clock: Clock,
) -> Appended:
    """See `Store.append`."""
    check_lease(rows, lease)
    head = find(rows, session_id)
    new = unknown_to(rows, lineage(rows, head) if head is not None else [], packed)
    if not new:
        return appended(session_id, head, 0)
    revision = head.revision if head is not None else 0
    if expected_revision is not None and expected_revision != revision:
        base = None
        if on_conflict == "fork" and head is not None and expected_revision < revision:
            base = head_at(rows, head, expected_revision)
        if on_conflict == "raise" or (on_conflict == "fork" and base is None):
            raise conflict(session_id, expected_revision=expected_revision, revision=revision)
        if base is not None:
            base.message_count = count(rows, lineage(rows, base))
            session_id = f"{session_id}~{clock.new_id()}"
            head = create(rows, session_id, clock, shared=base)
            new = unknown_to(rows, lineage(rows, head), packed)
    if head is None:
        head = create(rows, session_id, clock)
    kind = FAILED if is_failed else MESSAGE
    aside = _archived(rows, head, archive, run_id=run_id, clock=clock)
    add(rows, head, new, run_id=run_id, kind=kind)
    commit(rows, head, clock, reply_usage(p.message for p in (*aside, *new)))
    return appended(session_id, head, len(new))


def start_branch(
    rows: Rows,
    session_id: str,
    packed: Sequence[Packed],
    *,
    after: int,
    run_id: str | None,
    expected_revision: int | None,
    archive: Sequence[Packed],
    lease: Lease | None,
    clock: Clock,
) -> Appended:
    """See `Store.start_branch`."""
    check_lease(rows, lease)
    head = known(rows, session_id)
    if expected_revision is not None and expected_revision != head.revision:
        raise conflict(session_id, expected_revision=expected_revision, revision=head.revision)
    checked_after(after, head.last_seq)
    before = list(lineage(rows, head))
    aside = _archived(rows, head, archive, run_id=run_id, clock=clock)
    number = new_branch(rows, head, parent_seq=after, run_id=None, clock=clock)
    head.branch, head.last_seq = number, after
    segments = list(lineage(rows, head))
    head.message_count = count(rows, segments)
    new = unknown_to(rows, segments, packed)
    for item in new:
        run, kind = _first_logged(rows, before, item) or (run_id, MESSAGE)
        add(rows, head, [item], run_id=run, kind=kind)
    commit(rows, head, clock, reply_usage(p.message for p in (*aside, *new)))
    return appended(session_id, head, len(new))


def fork(
    rows: Rows, session_id: str, new_session_id: str, *, after: int | None, clock: Clock
) -> Appended:
    """See `Store.fork`."""
    head = known(rows, session_id)
    if after is not None:
        head.last_seq = checked_after(after, head.last_seq)
        head.message_count = count(rows, lineage(rows, head))
    if find(rows, new_session_id) is not None:
        raise existing(new_session_id)
    made = create(rows, new_session_id, clock, shared=head)
    commit(rows, made, clock, Usage())
    return appended(new_session_id, made, 0)


def rename(rows: Rows, session_id: str, new_session_id: str, *, clock: Clock) -> None:
    """See `Store.rename`."""
    known(rows, session_id)
    if new_session_id == session_id:
        return
    if find(rows, new_session_id) is not None:
        raise existing(new_session_id)
    if is_leased(rows, session_id, clock):
        raise busy(session_id)
    rows.run("delete_lease", {"session_id": session_id})
    rows.run("delete_tickets", {"session_id": session_id})
    rows.run("rename_conversation", {"session_id": session_id, "new_session_id": new_session_id})


def set_metadata(rows: Rows, session_id: str, metadata: str) -> None:
    """See `Store.set_metadata`; `metadata` is its JSON."""
    known(rows, session_id)
    rows.run("set_metadata", {"session_id": session_id, "metadata": metadata})


def redact(rows: Rows, session_id: str, redaction: Redaction, *, clock: Clock) -> int:
    """See `Store.redact`, but for the journal, which is emptied afterwards."""
    head = known(rows, session_id)
    own = {"conversation_id": head.conversation_id}
    detach_forks(rows, head.conversation_id)
    detached(rows, head.conversation_id, 1)
    dropped: set[str] = set()
    changed = 0
    for row in rows.all("list_entries", own):
        place: dict[str, Value] = {**own, "branch": row["branch"], "seq": row["seq"]}
        message = unpack(rows, row["body"])
        kept = checked_redacted(redaction(message))
        if kept is message:
            continue
        packed = pack(replace(kept, id=message.id)) if kept is not None else None
        if packed is not None and packed.body == row["body"]:
            continue
        changed += 1
        if packed is None:
            dropped |= remove_entry(rows, place)
        else:
            dropped |= _without_media(rows, place)
            rows.run("change_entry", place, body=packed.body)
            keep_media(rows, place, packed.media)
    drop_unused(rows, dropped)
    if changed:
        drop_notes(rows, head)
        head.message_count = count(rows, lineage(rows, head))
        commit(rows, head, clock, Usage())
    return changed


def delete(rows: Rows, session_id: str) -> bool:
    """See `Store.delete`, but for the journal, which is emptied afterwards."""
    name = {"session_id": session_id}
    rows.run("delete_lease", name)
    rows.run("delete_tickets", name)
    head = find(rows, session_id)
    if head is None:
        return False
    own = {"conversation_id": head.conversation_id}
    detach_forks(rows, head.conversation_id)
    used = [str(use["digest"]) for use in rows.all("media_of_conversation", own)]
    for table in ("media_uses", "entries", "branches", "commits", "runs", "checkpoints", "calls"):
        rows.run(f"delete_{table}", own)
    drop_unused(rows, used)
    rows.run("delete_conversation", name)
    return True


# --- pieces --------------------------------------------------------------------------------------


def add(rows: Rows, head: Head, packed: Sequence[Packed], *, run_id: str | None, kind: str) -> None:
    """Write entries behind the end of a history; the head goes along."""
    entries = [
        {
            "conversation_id": head.conversation_id,
            "branch": head.branch,
            "seq": seq,
            "message_id": item.message.id,
            "run_id": run_id,
            "kind": kind,
            "created_at": item.message.created_at.isoformat(timespec="microseconds"),
            "body": item.body,
        }
        for seq, item in enumerate(packed, head.last_seq + 1)
    ]
    rows.run_many("add_entry", entries)
    for entry, item in zip(entries, packed, strict=True):
        keep_media(rows, entry, item.media)
        rows.memo.put_written(item.body, item.message)
    head.last_seq += len(entries)
    head.message_count += len(entries)


def commit(rows: Rows, head: Head, clock: Clock, usage: Usage) -> None:
    """Write what the head has become as the conversation's next revision."""
    head.revision += 1
    rows.run(
        "update_conversation",
        head.params,
        now=head.created_at or now(clock),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        requests=usage.requests,
    )
    rows.run("add_commit", head.params)


def create(rows: Rows, session_id: str, clock: Clock, *, shared: Head | None = None) -> Head:
    """Create a conversation whose first branch is empty, or continues another conversation's."""
    head = Head(
        session_id=session_id,
        conversation_id=clock.new_id(),
        branch=1,
        last_seq=shared.last_seq if shared is not None else 0,
        message_count=shared.message_count if shared is not None else 0,
        revision=0,
        created_at=now(clock),
    )
    rows.run("create_conversation", head.params, now=head.created_at)
    parent = shared if shared is not None and shared.last_seq > 0 else None
    rows.run(
        "create_branch",
        head.params,
        parent_conversation_id=parent.conversation_id if parent is not None else None,
        parent_branch=parent.branch if parent is not None else None,
        parent_seq=head.last_seq,
        run_id=None,
        now=head.created_at,
    )
    if parent is not None:
        target = {"to_conversation_id": head.conversation_id}
        rows.run("copy_runs", parent.params, **target)
    return head


def new_branch(rows: Rows, head: Head, *, parent_seq: int, run_id: str | None, clock: Clock) -> int:
    """Start a branch of the present one and return its number."""
    own = {"conversation_id": head.conversation_id}
    highest = rows.one("highest_branch", own)
    assert highest is not None
    number = 1 + int(highest["branch"])
    rows.run(
        "create_branch",
        own,
        branch=number,
        parent_conversation_id=None,
        parent_branch=head.branch,
        parent_seq=parent_seq,
        run_id=run_id,
        now=now(clock),
    )
    return number


def _archived(
    rows: Rows, head: Head, packed: Sequence[Packed], *, run_id: str | None, clock: Clock
) -> list[Packed]:
    """Log messages on a branch of their own behind the history; returns those that it had not."""
    new = unknown_to(rows, lineage(rows, head), packed)
    if new:
        number = new_branch(rows, head, parent_seq=head.last_seq, run_id=None, clock=clock)
        add(rows, replace(head, branch=number), new, run_id=run_id, kind=MESSAGE)
    return new


def _first_logged(
    rows: Rows, segments: Sequence[Segment], item: Packed
) -> tuple[str | None, str] | None:
    """The run and the kind of a message that a history has already: it is still whose it is."""
    name = {"message_id": item.message.id}
    found = (rows.one("first_logged", segment.params, **name) for segment in segments)
    return next(((row["run_id"], str(row["kind"])) for row in found if row is not None), None)


def remove_entry(rows: Rows, place: dict[str, Value]) -> set[str]:
    """Remove one entry; returns the digests of the media that it used."""
    used = _without_media(rows, place)
    rows.run("remove_entry", place)
    return used


def _without_media(rows: Rows, place: dict[str, Value]) -> set[str]:
    used = {str(use["digest"]) for use in rows.all("media_of_entry", place)}
    rows.run("remove_media_use", place)
    return used


def drop_notes(rows: Rows, head: Head) -> None:
    """Remove what runs can be resumed from, which may hold text that was erased from the log."""
    for query in ("delete_checkpoints", "delete_calls", "drop_inputs", "count_logged"):
        rows.run(query, head.params)


def detach_forks(rows: Rows, conversation_id: str) -> None:
    """Make every fork of a conversation independent of its rows."""
    for row in rows.all("list_forks", {"conversation_id": conversation_id}):
        detached(rows, row["conversation_id"], row["branch"])


def detached(rows: Rows, conversation_id: str, branch: int) -> None:
    """Give a fork's first branch rows of its own for what it shares with the other conversation."""
    place = {"conversation_id": conversation_id, "branch": branch}
    found = rows.one("find_branch", place)
    if found is None or found["parent_conversation_id"] is None:
        return
    parent = Head(
        session_id="",
        conversation_id=found["parent_conversation_id"],
        branch=found["parent_branch"],
        last_seq=found["parent_seq"],
        message_count=0,
        revision=0,
    )
    target = {"to_conversation_id": conversation_id, "to_branch": branch}
    for segment in list(lineage(rows, parent)):
        rows.run("copy_entries", segment.params, **target)
        rows.run("copy_media_uses", segment.params, **target)
    rows.run("detach_branch", place)


def appended(session_id: str, head: Head | None, written: int) -> Appended:
    """Return what a caller is told of a write."""
    return Appended(
        session_id=session_id,
        revision=head.revision if head is not None else 0,
        last_seq=head.last_seq if head is not None else 0,
        written=written,
    )


def now(clock: Clock) -> str:
    """Return the time as rows hold it."""
    return clock.now().isoformat(timespec="microseconds")
