"""What the commands share: options, and how something is said on a terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.text import Text as Styled

from tenure.errors import StoreOpenError, UsageError
from tenure.marks import is_summary
from tenure.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from tenure.stores import Store, default_store_path, open_store, url_of

# What a terminal would obey instead of showing it: C0 and C1 controls but tab and newline.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="FILE|URL",
        envvar="TENURE_STORE",
        help="The database: a file, or a URL such as sqlite:////var/lib/chat.db. "
        "By default tenure.db in your data directory.",
    ),
]


AgentName = Annotated[
    str, typer.Option("--agent", metavar="NAME", help="The agent whose memories they are.")
]
User = Annotated[
    str | None, typer.Option("--user", metavar="ID", help="Its user; without, the one of nobody.")
]
EmbedderName = Annotated[
    str,
    typer.Option(
        "--embedder",
        metavar="NAME",
        help="'local', 'provider:model', 'none' for words only; 'auto' is the local one if "
        "it is installed.",
    ),
]


def named_embedder(embedder: str) -> str | None:
    """Return the embedder of an option; None for words only."""
    return None if embedder == "none" else embedder


def opened_store(db: str | None) -> Store:
    """Return the store of a file or URL; the file of the data directory when None."""
    chosen = db if db is not None else str(default_store_path())
    return open_store(chosen if "://" in chosen else url_of(chosen))


def existing_store(db: str | None) -> Store:
    """Return the store to look into; a file that is not there is not made by looking."""
    chosen = db if db is not None else str(default_store_path())
    if "://" not in chosen and not Path(chosen).exists():
        raise StoreOpenError(
            f"There is no database {chosen!r} yet; start with `tenure chat`, or give --db another."
        )
    return opened_store(db)


def unknown_conversation(session: str) -> UsageError:
    """The error of a conversation that is not there."""
    return UsageError(
        f"There is no conversation {session!r}; `tenure sessions` lists those there are."
    )


def shown(text: str) -> str:
    """Return a text as a terminal may show it: without what it would obey."""
    return CONTROLS.sub("�", text)


def write(text: str, to: TextIO | None = None) -> None:
    """Write to standard output, or elsewhere, at once."""
    stream = to if to is not None else sys.stdout
    stream.write(shown(text) if stream.isatty() else text)
    stream.flush()


def say(text: str) -> None:
    """Write a line to standard error."""
    write(f"{text}\n", sys.stderr)


def murmur(text: str) -> None:
    """Write a line to standard error, dimmed on a terminal."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Styled(shown(text), style="dim"))


def print_messages(messages: list[Message]) -> None:
    """Write messages to standard output, a line each."""
    for message in messages:
        write(f"{line_of(message)}\n")


def line_of(message: Message, part: Part | None = None) -> str:
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
