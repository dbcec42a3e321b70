"""What the commands share: the database option, and how something is said on a terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from tenure.errors import StoreOpenError
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
