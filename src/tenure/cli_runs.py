"""The commands on runs that can be resumed: `tenure runs` and `tenure rollback`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from tenure.cli_terminal import Db, existing_store, say, shown, unknown_conversation, write
from tenure.clock import SYSTEM_CLOCK
from tenure.errors import UsageError
from tenure.messages import Json
from tenure.stores import Store
from tenure.stores.base import Lease
from tenure.stores.leases import hold
from tenure.stores.run_records import CallRecord, CheckpointRecord, RunRecord

_LAST = 10  # finished runs that are shown, unless all are asked for
_WIDTH = 60  # of an input

Session = Annotated[str, typer.Argument(metavar="SESSION", help="The conversation.")]


@dataclass(frozen=True, slots=True)
class _Run:
    """A run with all that is known of it."""

    record: RunRecord
    checkpoints: Sequence[CheckpointRecord]
    calls: Sequence[CallRecord]

    @property
    def state(self) -> str:
        if self.record.ended_at is not None:
            return "finished"
        return "unfinished" if self.record.input is not None else "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is going to be done with a run.

    Args:
        version: Where it goes back to, 0 for its beginning; None to give it up.
        lines: What that means, before it is asked.
        question: What is asked.
        done: What is said afterwards.
    """

    version: int | None
    lines: Sequence[str]
    question: str
    done: str


def runs(
    session: Session,
    db: Db = None,
    has_all: Annotated[bool, typer.Option("--all", help="All, not the last 10 finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """List a conversation's runs with persistence, with their checkpoints and tool calls."""
    store = existing_store(db)
    with asyncio.Runner() as runner:
        found = runner.run(store.conversation(session))
        records = runner.run(store.runs(session))
        if not has_all:
            ended = [record for record in records if record.ended_at is not None]
            old = {record.run_id for record in ended[:-_LAST]}
            records = [record for record in records if record.run_id not in old]
        known = [runner.run(_known(store, session, record)) for record in records]
        runner.run(store.close())
    if found is None:
        raise unknown_conversation(session)
    if as_json:
        objects = [_to_json(run) for run in known]
        typer.echo(json.dumps(objects, ensure_ascii=False, indent=2))
    elif not known:
        say(f"Conversation {session} has no runs with persistence.")
    for run in known if not as_json else ():
        _print(run)


def rollback(
    session: Session,
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="Its version or id; 0 for the beginning."),
    ] = None,
    db: Db = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Which run, if there are several.")
    ] = None,
    gives_up: Annotated[
        bool, typer.Option("--give-up", help="Remove what it has saved; it is not resumed.")
    ] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
) -> None:
    """Take a conversation's unfinished run back to a checkpoint, or give it up.

    The agent goes on from there the next time it runs, and first undoes what its tools have done since.
    """
    if (checkpoint is None) != gives_up:
        raise UsageError("Give either a checkpoint (`tenure runs` lists them) or --give-up.")
    store = existing_store(db)
    with asyncio.Runner() as runner:
        try:
            if runner.run(store.conversation(session)) is None:
                raise unknown_conversation(session)
            # Held while asking, too, so that what was said is what happens.
            holder = SYSTEM_CLOCK.new_id()
            held = runner.run(hold(store, session, holder=holder, on_busy="reject"))
            try:
                unfinished = runner.run(store.runs(session, unfinished=True))
                chosen = runner.run(_known(store, session, _chosen(session, unfinished, run)))
                plan = _give_up(chosen) if checkpoint is None else _go_back(chosen, checkpoint)
                for line in plan.lines:
                    say(line)
                # Not in a coroutine: a Runner keeps the first Ctrl-C from what blocks its loop.
                if is_sure or typer.confirm(plan.question, err=True):
                    runner.run(_carry_out(store, session, chosen, plan.version, held.lease))
                    say(plan.done)
            finally:
                runner.run(held.release())
        finally:
            runner.run(store.close())


async def _carry_out(
    store: Store, session: str, run: _Run, version: int | None, lease: Lease
) -> None:
    if version is None:
        await store.discard_run(session, run.record.run_id, lease=lease)
    else:
        await store.roll_back(session, run.record.run_id, version=version, lease=lease)


def _give_up(run: _Run) -> _Plan:
    name = _in_one_line(run.record.run_id)
    lines = [f"to be forgotten: call {_line_of_call(call)}" for call in run.calls]
    if lines:
        lines.append("What these tools have done stays, and nothing undoes it any more.")
    return _Plan(
        version=None,
        lines=lines,
        question=f"Remove what run {name} has saved, so that it is not resumed?",
        done=f"Gave up run {name}.",
    )


def _go_back(run: _Run, checkpoint: str) -> _Plan:
    version = _version(run, checkpoint)
    later = [each for each in run.checkpoints if each.version > version]
    calls = [each for each in run.calls if each.after >= version and not each.is_rolled_back]
    lines = [f"to be removed: checkpoint {_line_of_checkpoint(each)}" for each in later]
    lines += [f"to be undone: call {_line_of_call(call)}" for call in reversed(calls)]
    if calls:
        lines.append(
            "The calls are only marked here: the agent undoes them when it runs next, those that its "
            "RollbackToolRegistry has something for."
        )
    name, place = _in_one_line(run.record.run_id), version or "its beginning"
    return _Plan(
        version=version,
        lines=lines,
        question=f"Take run {name} back to {place}?",
        done=f"Took run {name} back to {place}.",
    )


async def _known(store: Store, session: str, record: RunRecord) -> _Run:
    return _Run(
        record,
        await store.checkpoints(session, record.run_id),
        await store.calls(session, record.run_id),
    )


def _chosen(session: str, unfinished: Sequence[RunRecord], run_id: str | None) -> RunRecord:
    """The run that is meant.

    Raises:
        UsageError: There is none, or there are several.
    """
    found = [record for record in unfinished if run_id in (None, record.run_id)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{_in_one_line(record.run_id)} ({_whose(record)})" for record in found)
        raise UsageError(
            f"Conversation {session!r} has several unfinished runs: {names}; give --run."
        )
    which = "no unfinished run" if run_id is None else f"no unfinished run {run_id!r}"
    raise UsageError(f"Conversation {session!r} has {which}; `tenure runs` lists those there are.")


def _version(run: _Run, checkpoint: str) -> int:
    """The version of a checkpoint that is named by that, or by its id.

    Raises:
        UsageError: There is none, or it is the id of one and the version of another.
    """
    names = {"0": {0}}
    for each in run.checkpoints:
        names.setdefault(each.checkpoint_id, set()).add(each.version)
        names.setdefault(str(each.version), set()).add(each.version)
    found = sorted(names.get(checkpoint, ()))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{checkpoint!r} is the version of one checkpoint and the id of another; name the one you "
            "mean by the other of the two."
        )
    name = _in_one_line(run.record.run_id)
    raise UsageError(
        f"Run {name} has no checkpoint {checkpoint!r}; `tenure runs` lists those there are."
    )


def _print(run: _Run) -> None:
    record = run.record
    times = _time(record.started_at)
    if record.ended_at is not None:
        times += f" to {_time(record.ended_at)}"
    write(f"{_in_one_line(record.run_id)}  {run.state}  {_whose(record)}  {times}\n")
    if record.input is not None:
        text = " ".join(record.input.split())
        write(f"  input  {shown(text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…')}\n")
    for each in run.checkpoints:
        write(f"  checkpoint {_line_of_checkpoint(each)}\n")
    for call in run.calls:
        write(f"  call {_line_of_call(call)}\n")


def _line_of_checkpoint(each: CheckpointRecord) -> str:
    when = _time(each.created_at)
    return _in_one_line(f"{each.version}  {each.node_path}  {when}  {each.checkpoint_id}")


def _line_of_call(call: CallRecord) -> str:
    line = f"{call.number}  {call.call.tool}  {call.call.node_path}  {_time(call.started_at)}"
    return _in_one_line(f"{line}  {_state_of(call)}")


def _state_of(call: CallRecord) -> str:
    if call.is_undone:
        return "undone"
    if call.is_rolled_back:
        return "rolled back"
    return "finished" if call.outcome is not None else "unknown"


def _whose(record: RunRecord) -> str:
    owner = record.owner
    user = f" for user {owner.user_id}" if owner.user_id is not None else ""
    return _in_one_line(f"agent {owner.agent_id}{user}")


def _in_one_line(text: str) -> str:
    """A text whose names cannot begin another line, nor steer a terminal."""
    return shown(text).replace("\n", " ")


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _to_json(run: _Run) -> Mapping[str, Json]:
    record = run.record
    return {
        "run_id": record.run_id,
        "agent_id": record.owner.agent_id,
        "user_id": record.owner.user_id,
        "state": run.state,
        "input": record.input,
        "started_at": record.started_at.isoformat(),
        "ended_at": record.ended_at.isoformat() if record.ended_at is not None else None,
        "checkpoints": [
            {
                "version": each.version,
                "checkpoint_id": each.checkpoint_id,
                "node_path": each.node_path,
                "created_at": each.created_at.isoformat(),
            }
            for each in run.checkpoints
        ],
        "calls": [
            {
                "number": each.number,
                "tool": each.call.tool,
                "node_path": each.call.node_path,
                "state": _state_of(each),
                "started_at": each.started_at.isoformat(),
                "finished_at": each.finished_at.isoformat() if each.finished_at else None,
            }
            for each in run.calls
        ],
    }
