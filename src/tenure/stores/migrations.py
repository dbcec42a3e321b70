"""SQL that lives in files: the named queries of a driver, and its numbered migrations.

A migration is a file `NNNN_name.sql`, run once, in order of the numbers, and committed together with its
record, so that a process killed in the middle leaves the schema of the migration before. Forward only: a
database that records a number which is not here was written by a newer version, and is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str


@cache
def named_queries(file_name: str) -> dict[str, str]:
    """Return the statements of a file beside this one, by the name in the line `-- name: x` above each."""
    text = (files("tenure.stores") / file_name).read_text("utf-8")
    _, *sections = _SECTION.split(text)
    return dict(zip(sections[::2], (sql.strip() for sql in sections[1::2]), strict=True))


@cache
def migrations(folder: str) -> tuple[Migration, ...]:
    """Return the migrations in a folder beside this file, in order of their numbers."""
    found = [
        Migration(number=int(match[1]), name=match[2], sql=file.read_text("utf-8"))
        for file in (files("tenure.stores") / folder).iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.number))
