"""`tenure chat`: one sitting at a terminal or a pipe; and what such a chat sends its model."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer

from tenure.agent import DEFAULT_WINDOW, Agent, own_system_prompt
from tenure.cli_terminal import (
    AgentName,
    Db,
    EmbedderName,
    User,
    murmur,
    named_embedder,
    opened_store,
    print_messages,
    say,
    write,
)
from tenure.clock import SYSTEM_CLOCK
from tenure.compression import KeepLastN
from tenure.errors import ModelError
from tenure.events import MemoriesRecalled
from tenure.explanations import ExplainedView, explained_view
from tenure.features.chat_memory import ChatMemory
from tenure.features.preprocessing import WindowSizePreprocessor, WindowTokensPreprocessor
from tenure.features.recall import LongTermMemory
from tenure.memories import Memories
from tenure.memory import Memory
from tenure.messages import Message
from tenure.models import TextDelta
from tenure.recalled import Attached
from tenure.saying import user
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
HELP_WITH_MEMORY = f"/memories lists what is remembered, {HELP_IN_CHAT}"
_LISTED = 50  # memories
_SHOWN_CHARS = 120  # of a memory

System = Annotated[str, typer.Option("--system", metavar="TEXT", help="The system prompt.")]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=1,
        metavar="TOKENS",
        help="Send the model at most so many tokens. In a chat, older messages become a summary.",
    ),
]


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
    system: System = DEFAULT_SYSTEM_PROMPT,
    budget: Budget = None,
    has_memory: Annotated[
        bool,
        typer.Option("--memory", help="Recall what was said in other conversations, too."),
    ] = False,
    agent: AgentName = "agent",
    user: User = None,
    embedder: EmbedderName = "auto",
) -> None:
    """Chat with an agent that still knows the conversation the next time.

    Reads lines from the terminal, or from a pipe.

    In the chat, /history shows the conversation, /new starts another one,
    and /exit ends; so do Ctrl-D and Ctrl-C. What was answered is kept.
    With --memory, /memories lists what is remembered.
    """
    checked_session_id(session)
    store = opened_store(db)
    chosen = model or (DEFAULT_OPENAI_MODEL if os.environ.get("OPENAI_API_KEY") else "local")
    history = ChatMemory(store)
    if budget is None:
        history.window_size(DEFAULT_WINDOW)
    else:
        history.window_tokens(budget).compress_when(
            tokens=_limit(budget), strategy=KeepLastN(KEPT_WHEN_COMPRESSED)
        )
    made = Agent(
        model=chosen,
        system_prompt=system,
        name=agent,
        user_id=user,
        store=store,
        features=[history],
        memory=has_memory,
        embedder=named_embedder(embedder) if has_memory else None,
    )
    with asyncio.Runner() as runner:
        memories = made.memory if has_memory else None
        try:
            _Chat(made, store, memories, session, runner).run()
        except KeyboardInterrupt:
            say("")
        finally:
            if memories is not None:
                runner.run(memories.close())
            runner.run(store.close())


class _Chat:
    """One sitting: a line in, a reply out."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        memories: Memories | None,
        session_id: str,
        runner: asyncio.Runner,
    ) -> None:
        self._agent = agent
        self._store = store
        self._memories = memories
        self._session_id = session_id
        self._runner = runner
        self._is_interactive = sys.stdin.isatty()
        self._help = HELP_IN_CHAT if memories is None else HELP_WITH_MEMORY

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
                    print_messages(messages)
                case "/memories" if self._memories is not None:
                    self._list(self._memories)
                case command if command.startswith("/") and " " not in command:
                    say(f"There is no command {command}: {self._help}.")
                case text:
                    self._answer(text)

    def _greet(self) -> None:
        found = self._runner.run(self._store.conversation(self._session_id))
        count = found.message_count if found is not None else 0
        remembered = f"{count} message{'' if count == 1 else 's'} remembered"
        say(f"Conversation {self._session_id}: {remembered}. {self._help}.")

    def _list(self, memories: Memories) -> None:
        found = self._runner.run(memories.list(limit=_LISTED))
        for memory in reversed(found):
            write(f"{_line_of_memory(memory)}\n")
        if not found:
            say("Nothing is remembered yet.")
        elif len(found) == _LISTED:
            say(f"These are the latest {_LISTED}; `tenure memory list` has all.")

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
                async for event in stream:
                    if isinstance(event, MemoriesRecalled):
                        tell_recalled(event)
                    elif isinstance(event, TextDelta):
                        write(event.text)
                        is_shown = True
            finally:
                if is_shown:
                    write("\n")


def tell_recalled(event: MemoriesRecalled) -> None:
    """Say what was recalled, the best first."""
    if event.by_words_only_because is not None:
        murmur(f"The embedder failed, so words alone decide: {event.by_words_only_because}")
    for memory in event.memories:
        murmur(f"recalled: {_line_of_memory(memory)}")


def view_of(
    messages: list[Message],
    *,
    system: str,
    budget: int | None,
    says: str | None,
    memory: LongTermMemory | None,
    session_id: str,
    runner: asyncio.Runner,
) -> ExplainedView:
    """What `tenure chat` with these options would send for the next line."""
    own = own_system_prompt(system)
    limit = TokenBudget(tokens=budget, counter=TokenEstimator()) if budget is not None else None
    if limit is not None:
        window, name = WindowTokensPreprocessor(limit), f"the window of {limit.tokens} tokens"
        rule = compress_when(tokens=_limit(limit.tokens), strategy=KeepLastN(KEPT_WHEN_COMPRESSED))
        if rule.is_due([*([own] if own else []), *window.preprocess(messages)], None):
            say("note: tenure chat would first put a summary in the place of the older messages")
    else:
        window = WindowSizePreprocessor(DEFAULT_WINDOW)
        name = f"the window of {DEFAULT_WINDOW} messages"

    def explained(upcoming: Message | None) -> ExplainedView:
        return explained_view(
            messages,
            window=window.preprocess,
            window_name=name,
            system_prompt=own,
            budget=limit,
            upcoming=upcoming,
        )

    if says is None:
        return explained(None)
    upcoming = user(says)
    if memory is not None:
        shown = window.preprocess(messages)
        recalled = runner.run(memory.recall(says, shown, session_id=session_id))
        tell_recalled(recalled)
        [headed] = Attached(recalled.block, frozenset()).put([upcoming])
        view = explained(headed if recalled.block else upcoming)
        if view.sent or not recalled.block:
            return view
        say("note: the budget has no room for the recalled memories")
    return explained(upcoming)


def _limit(budget: int) -> int:
    """At how many tokens a chat with a budget compresses its history."""
    return max(1, int(budget * COMPRESS_AT))


def _line_of_memory(memory: Memory) -> str:
    text = " ".join(memory.content.split())
    cut = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} [...]"
    who = memory.speaker or memory.metadata.get("role")
    when = memory.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{when} {who}: {cut}" if who else f"{when} {cut}"
