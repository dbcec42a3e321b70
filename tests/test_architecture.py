"""Rules about the code itself that a review would otherwise have to repeat."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
import tenure.errors
import tenure.stores
import tenure.testing

SOURCE = Path(tenure.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# From the bottom up: a module imports, when it is loaded, only from rows above its own, or its own row.
ROWS = [
    {"errors", "clock", "mappings"},
    {"messages", "values", "instances", "scalars"},
    {"saying"},
    {"codec", "views", "marks", "conditions"},
    {"memory"},
    {"scripts"},
    {"languages"},
    {"terms"},
    {"likeness", "speakers"},
    {"retrieval"},
    {"tokens"},
    {"windows"},
    {"explanations"},
    {"prompt"},
    {"signatures"},
    {"tools", "idempotency"},
    {"models"},
    {"translation", "connections", "providers", "local", "local_engine"},
    {"embedding", "embedding_local", "embedding_remote"},
    {"stores"},
    {"embedding_worker"},
    {"generations"},
    {"finding"},
    {"memories"},
    {"parallel", "streams", "structured", "editing", "waiting"},
    {"recorded"},
    {"portal"},
    {"recalled"},
    {"asking", "summaries"},
    {"compression"},
    {"fact_compression"},
    {"sessions"},
    {"llm", "triggers"},
    {"events"},
    {"feature"},
    {"resuming"},
    {"run", "run_models", "run_nodes", "run_tools", "run_life"},
    {"graph", "graph_edges", "graph_nodes", "tool_selection"},
    {"strategy", "features", "run_stream"},
    {"agent"},
    {"sync_sessions", "sync_memories"},
    {"sync_strategies"},
    {"sync"},
    {"cli_terminal"},
    {"cli_memory", "cli_chat", "cli_runs"},
    {"", "cli", "testing"},
    {"__main__"},
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path, *, at_load_time: bool) -> set[str]:
    """The modules that a file imports, whole names; those in functions and for types only if asked."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.add(child.module or "")
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            elif at_load_time and (
                isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            ):
                continue
            else:
                visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    """A module imports only what is below it; values know nothing of storage."""
    own = module_of(path).split(".")[0]
    for name in imports_of(path, at_load_time=True):
        if name.startswith("tenure"):
            other = name.removeprefix("tenure").lstrip(".").split(".")[0]
            if other in RANK and other != own:  # else it is a name, not a module
                assert RANK[other] <= RANK[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_each_library_has_its_place(path: Path) -> None:
    """Only the provider modules import pydantic-ai, only the SQLite driver sqlite3."""
    module = module_of(path)
    libraries = {name.split(".")[0] for name in imports_of(path, at_load_time=True)}
    if module not in {"providers", "translation", "connections", "embedding_remote"}:
        assert "pydantic_ai" not in libraries
    if not module.startswith("stores.sqlite"):
        assert "sqlite3" not in libraries
        names = imports_of(path, at_load_time=False)
        assert module == "stores" or not any("stores.sqlite" in name for name in names)
    assert not libraries & {"typer", "rich"} or module.startswith("cli")


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_are_small(path: Path) -> None:
    """No file has more than 400 lines, and each begins by saying what it is for."""
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 400
    assert text.startswith('"""')


def test_the_public_surface_is_what_all_says() -> None:
    """`__all__` is sorted, whole and without strangers; everything in it is documented."""
    names = tenure.__all__
    assert names == sorted(names)
    public = {
        name
        for name, value in vars(tenure).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(names) - {"__version__"}
    for name in names:
        value = getattr(tenure, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def test_importing_is_cheap() -> None:
    """Making an agent imports neither numpy, pydantic-ai, sqlite3 nor the command line's libraries."""
    script = (
        "import sys\n"
        "from tenure import Agent, ChatMemory\n"
        "from tenure.testing import ScriptedModel\n"
        "Agent(model=ScriptedModel([]), features=[ChatMemory()])\n"
        "heavy = {'numpy', 'pydantic_ai', 'typer', 'rich', 'griffe', 'httpx', 'xllamacpp', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_every_error_is_in_the_drawn_tree() -> None:
    """The docstring of `errors.py` draws each error, and each derives from `TenureError`."""
    drawn = tenure.errors.__doc__ or ""
    for name, value in vars(tenure.errors).items():
        if inspect.isclass(value) and value.__module__ == "tenure.errors":
            assert issubclass(value, tenure.TenureError)
            assert name in drawn
            assert name in tenure.__all__


def test_public_functions_have_few_positional_arguments() -> None:
    """At most two positional parameters; the rest by name, so that there is room to grow."""
    for package in (tenure, tenure.testing, tenure.stores):
        for name in package.__all__:
            function = getattr(package, name)
            if inspect.isfunction(function):
                parameters = inspect.signature(function).parameters.values()
                positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
                assert len(positional) <= 2, name
