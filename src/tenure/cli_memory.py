"""The `tenure memory` commands: an agent's long-term memories, from the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text as Styled

from tenure.cli_terminal import (
    AgentName,
    Db,
    EmbedderName,
    User,
    existing_store,
    named_embedder,
    opened_store,
    say,
    shown,
    write,
)
from tenure.errors import InvalidValueError, UsageError
from tenure.memories import Memories
from tenure.memory import FilterFields, Memory, NewMemory, to_dict
from tenure.stores import Store

T = TypeVar("T")

memory_app = typer.Typer(help="An agent's long-term memories.", no_args_is_help=True)

Graph = Annotated[str | None, typer.Option("--graph", metavar="ID", help="A label.")]
Task = Annotated[str | None, typer.Option("--task", metavar="ID", help="A label.")]
SessionLabel = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="A label: the conversation.")
]
Speaker = Annotated[str | None, typer.Option("--speaker", metavar="NAME", help="Who said it.")]
Since = Annotated[
    datetime | None, typer.Option("--since", metavar="TIME", help="Only those from then on.")
]
Until = Annotated[
    datetime | None, typer.Option("--until", metavar="TIME", help="Only those up to then.")
]
AsOf = Annotated[
    datetime | None, typer.Option("--as-of", metavar="TIME", help="Only those true at that time.")
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="JSON", help='A condition, such as \'{"n": {"$gt": 1}}\'.'),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
MemoryId = Annotated[str, typer.Argument(metavar="ID", help="The memory.")]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The most to show.")]


@memory_app.command()
def add(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="What to remember; lines of the input if left out."
        ),
    ] = None,
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    graph: Graph = None,
    task: Task = None,
    session: SessionLabel = None,
    speaker: Speaker = None,
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", metavar="JSON", help="A JSON object to keep with it."),
    ] = None,
    embedder: EmbedderName = "auto",
    as_json: AsJson = False,
) -> None:
    """Remember texts, each as one memory."""
    notes = _object(metadata, "--metadata") or {}
    contents = texts or [line.strip() for line in sys.stdin if line.strip()]
    new = [
        NewMemory(
            content=content,
            metadata=notes,
            graph_id=graph,
            task_id=task,
            session_id=session,
            speaker=speaker,
        )
        for content in contents
    ]
    added = _run(opened_store(db), agent, user, embedder, lambda m: m.add_many(new))
    _print(added, as_json=as_json)


@memory_app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is looked for.")],
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    graph: Graph = None,
    task: Task = None,
    session: SessionLabel = None,
    speaker: Speaker = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    where: Where = None,
    limit: Limit = 10,
    offset: Annotated[
        int, typer.Option("--offset", min=0, metavar="N", help="Leave out so many of the best.")
    ] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each score is the sum of.")
    ] = False,
    embedder: EmbedderName = "auto",
    as_json: AsJson = False,
) -> None:
    """Find memories by words and meaning, the best first."""
    filters = _filters(graph, task, session, speaker, since, until, as_of, where)
    found = _run(
        existing_store(db),
        agent,
        user,
        embedder,
        lambda m: m.search(query, limit=limit, offset=offset, explain=explain, **filters),
    )
    _print(found, as_json=as_json)


@memory_app.command(name="list")
def list_(
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    graph: Graph = None,
    task: Task = None,
    session: SessionLabel = None,
    speaker: Speaker = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    where: Where = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List memories, the newest first."""
    filters = _filters(graph, task, session, speaker, since, until, as_of, where)
    store = existing_store(db)
    found = _run(store, agent, user, "none", lambda m: m.list(limit=limit, **filters))
    _print(found, as_json=as_json)


@memory_app.command()
def show(
    memory_id: MemoryId,
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    as_json: AsJson = False,
) -> None:
    """Show a memory with its earlier versions, the oldest first."""
    versions = _run(existing_store(db), agent, user, "none", lambda m: m.history(memory_id))
    if not versions:
        raise _unknown(memory_id)
    if as_json:
        _write_json([to_dict(version) for version in versions])
        return
    for version in versions:
        for name, value in to_dict(version).items():
            write(f"{name}: {value if isinstance(value, str) else json.dumps(value)}\n")
        write("\n")


@memory_app.command()
def update(
    memory_id: MemoryId,
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    content: Annotated[
        str | None, typer.Option("--content", metavar="TEXT", help="Its new text.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="Replaces all of the old one.")
    ] = None,
    expected_version: Annotated[
        int | None,
        typer.Option("--expected-version", metavar="N", help="Only if it is at this version."),
    ] = None,
    embedder: EmbedderName = "auto",
    as_json: AsJson = False,
) -> None:
    """Change a memory; what it was stays in its history."""
    notes = _object(metadata, "--metadata")
    changed = _run(
        existing_store(db),
        agent,
        user,
        embedder,
        lambda m: m.update(
            memory_id, content=content, metadata=notes, expected_version=expected_version
        ),
    )
    if changed is None:
        raise _unknown(memory_id)
    _print([changed], as_json=as_json)


@memory_app.command()
def delete(
    memory_id: MemoryId,
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    as_json: AsJson = False,
) -> None:
    """Delete a memory with its earlier versions, for good."""
    if not _run(existing_store(db), agent, user, "none", lambda m: m.delete(memory_id)):
        raise _unknown(memory_id)
    _tell(f"Deleted memory {memory_id}.", {"deleted": 1}, as_json=as_json)


@memory_app.command()
def clear(
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    graph: Graph = None,
    task: Task = None,
    session: SessionLabel = None,
    speaker: Speaker = None,
    since: Since = None,
    until: Until = None,
    as_of: AsOf = None,
    where: Where = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete all memories of an owner, or those that pass the filters, for good."""
    filters = _filters(graph, task, session, speaker, since, until, as_of, where)
    store = existing_store(db)
    if not is_sure:
        count = _run(store, agent, user, "none", lambda m: m.count(**filters), keep_open=True)
        owner = f"agent {agent!r}" + (f" and user {user!r}" if user is not None else "")
        if not typer.confirm(f"Delete {count} memories of {owner} for good?", err=True):
            return
    deleted = _run(store, agent, user, "none", lambda m: m.clear(**filters))
    _tell(f"Deleted {deleted} memories.", {"deleted": deleted}, as_json=as_json)


@memory_app.command()
def reembed(
    db: Db = None,
    agent: AgentName = "agent",
    user: User = None,
    embedder: EmbedderName = "auto",
    as_json: AsJson = False,
) -> None:
    """Give every memory a vector of an embedder; goes on where it was interrupted."""
    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        bar = progress.add_task("Embedding", total=None)

        def advanced(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        made = _run(
            existing_store(db), agent, user, embedder, lambda m: m.reembed(on_progress=advanced)
        )
    _tell(f"Embedded {made} memories.", {"embedded": made}, as_json=as_json)


# --- pieces --------------------------------------------------------------------------------------


def _run(
    store: Store,
    agent: str,
    user: str | None,
    embedder: str,
    work: Callable[[Memories], Awaitable[T]],
    *,
    keep_open: bool = False,
) -> T:
    """Do something with an owner's memories, and close the store."""

    async def done() -> T:
        memories = Memories.open(
            store, agent_id=agent, user_id=user, embedder=named_embedder(embedder)
        )
        try:
            return await work(memories)
        finally:
            await memories.close()
            if not keep_open:
                await store.close()

    return asyncio.run(done())


def _filters(
    graph: str | None,
    task: str | None,
    session: str | None,
    speaker: str | None,
    since: datetime | None,
    until: datetime | None,
    as_of: datetime | None,
    where: str | None,
) -> FilterFields:
    return {
        "graph_id": graph,
        "task_id": task,
        "session_id": session,
        "speaker": speaker,
        "start_date": _in_utc(since),
        "end_date": _in_utc(until),
        "as_of": _in_utc(as_of),
        "where": _object(where, "--where"),
    }


def _in_utc(moment: datetime | None) -> datetime | None:
    """A time as it is typed, which is the machine's own."""
    return None if moment is None else moment.astimezone(UTC)


def _object(text: str | None, option: str) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise InvalidValueError(f"{option} {text!r} is no JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise InvalidValueError(f"{option} {text!r} is no JSON object; write {{...}}.")
    return value  # pyright: ignore[reportUnknownVariableType]


def _unknown(memory_id: str) -> UsageError:
    return UsageError(
        f"There is no memory {memory_id!r} of this owner; `tenure memory list` lists those there are."
    )


def _print(memories: list[Memory], *, as_json: bool) -> None:
    if as_json:
        _write_json([to_dict(memory) for memory in memories])
        return
    if not memories:
        say("There are no such memories.")
        return
    has_score, has_signals = memories[0].score is not None, memories[0].signals is not None
    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("when", no_wrap=True)
    for name in (*(["score"] if has_score else []), *(["why"] if has_signals else []), "memory"):
        table.add_column(name, overflow="fold")
    for memory in memories:
        cells = [memory.id, memory.created_at.astimezone().strftime("%Y-%m-%d %H:%M")]
        if memory.score is not None:
            cells.append(f"{memory.score:.3f}")
        if memory.signals is not None:
            parts = [f"{name} {value:.2f}" for name, value in memory.signals.items() if value]
            cells.append("\n".join(parts))
        table.add_row(*cells, Styled(shown(memory.content)))
    Console(highlight=False).print(table)


def _tell(sentence: str, data: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        _write_json(data)
    else:
        say(sentence)


def _write_json(value: object) -> None:
    write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
