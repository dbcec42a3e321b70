"""LLM sessions and the run's context for code without async: the names of `sessions.py`, blocking.

What these classes are given lives on an event loop in another thread; each call that asks or waits is run
there, and the calling thread waits for it. Edits of a session's prompt are plain assignments and happen at
once. Import these from `tenure.sync`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

import tenure.llm as _llm
import tenure.sessions as _sessions
from tenure.editing import Editing, Reading, SessionState
from tenure.errors import UsageError
from tenure.waiting import wait

if TYPE_CHECKING:
    from tenure.compression import HistoryCompression
    from tenure.messages import (
        AssistantMessage,
        AssistantPart,
    )
    from tenure.models import Model, StreamFrame
    from tenure.prompt import Prompt
    from tenure.streams import SessionStream
    from tenure.structured import OutputSchema, StructuredResult
    from tenure.tools import Tool, ToolFunction, ToolOutcome, ToolSpec

T = TypeVar("T")
S = TypeVar("S", bound=_sessions.ReadSession)


class _Caller:
    """Runs coroutines on one loop, until whatever it belongs to has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[object] | None] = set()
        self._has_ended = False

    def __call__(self, coroutine: Coroutine[object, object, T]) -> T:
        try:
            if self._has_ended or not self._loop.is_running():
                raise UsageError("This run has ended or was cancelled; use no part of it any more.")
            return wait(self._counted(coroutine), lambda: self._loop)
        finally:
            coroutine.close()  # if it was not run: else it has ended

    async def _counted(self, coroutine: Coroutine[object, object, T]) -> T:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            return await coroutine
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """Cancel what is under way, and refuse the rest; on the loop's thread."""
        self._has_ended = True
        for task in self._tasks:
            if task is not None:
                task.cancel()

    def iterate(self, stream: SessionStream[T]) -> Generator[T]:
        """The items of a stream, one by one; closes it when the iteration is left."""

        async def next_item() -> tuple[T] | None:
            async for item in stream:
                return (item,)
            return None

        async def close() -> None:
            await stream.aclose()

        try:
            while (found := self(next_item())) is not None:
                yield found[0]
        finally:
            self(close())


class LLMContext:
    """What a run's model is asked, for other threads than that of the run's loop.

    A strategy of `tenure.sync.Agent` has one as `ctx.llm`. Make one of a `tenure.LLMContext` to open
    sessions in a plain tool, which runs in a worker thread.
    """

    def __init__(self, context: _llm.LLMContext) -> None:
        """Open sessions on this context.

        Raises:
            UsageError: It belongs to no event loop.
        """
        if context.loop is None:
            raise UsageError("This LLMContext was made outside of any run, so no loop serves it.")
        self._context = context
        self._call = _Caller(context.loop)
        self._open: set[_llm.Block[Any]] = set()

    @property
    def prompt(self) -> Prompt:
        """The prompt as last committed."""
        return self._context.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered, as last committed."""
        return self._context.tools

    @property
    def model(self) -> Model:
        """The model, as last committed."""
        return self._context.model

    @contextmanager
    def read_session(self) -> Generator[ReadSession]:
        """Open a session that can look and ask, but change nothing. See `tenure.LLMContext`."""
        with self._opened(self._context.read_session()) as session:
            yield ReadSession(session, self._call)

    @contextmanager
    def write_session(self) -> Generator[WriteSession]:
        """Open a session that may change what is asked. See `tenure.LLMContext`."""
        with self._opened(self._context.write_session()) as session:
            yield WriteSession(session, self._call)

    @contextmanager
    def _opened(self, block: _llm.Block[S]) -> Generator[S]:
        """The steps of `async with block`; those that concern the running code, in this thread."""
        block.check()
        session = self._call(self._open_block(block))
        block.enter()
        try:
            yield session
        except BaseException:
            block.leave()
            self._call(self._close_block(block, commit=False))
            raise
        block.leave()
        self._call(self._close_block(block, commit=True))

    async def _open_block(self, block: _llm.Block[S]) -> S:
        session = await block.open()
        self._open.add(block)
        return session

    async def _close_block(self, block: _llm.Block[Any], *, commit: bool) -> None:
        self._open.discard(block)
        await block.close(commit=commit)

    async def _end(self) -> None:
        """Refuse everything from now on, and end the sessions that a thread still has; on the loop."""
        self._call.end()
        for block in [*self._open]:
            await self._close_block(block, commit=False)


class ReadSession(Reading):
    """Looks at a context and asks its model. See `tenure.ReadSession`."""

    def __init__(self, session: _sessions.ReadSession, call: _Caller) -> None:
        self._session: Any = session
        self._call = call

    @property
    def _state(self) -> SessionState:
        return self._session._state

    def request_llm(self) -> AssistantMessage:
        """Ask with the prompt and the tools, and return the whole reply."""
        return self._call(self._session.request_llm())

    def request_llm_multiple(self) -> list[AssistantPart]:
        """Ask with the prompt and the tools, and return the parts of the reply, in order."""
        return self._call(self._session.request_llm_multiple())

    def request_llm_without_tools(self) -> AssistantMessage:
        """Ask with no tools; the calls and results in the history are sent as text."""
        return self._call(self._session.request_llm_without_tools())

    def request_llm_only_calling_tools(self) -> AssistantMessage:
        """Ask, and have the model call at least one tool."""
        return self._call(self._session.request_llm_only_calling_tools())

    def request_llm_force_one_tool(
        self, tool: str | type | ToolSpec | Tool | ToolFunction
    ) -> AssistantMessage:
        """Ask, and have the model call exactly this tool."""
        return self._call(self._session.request_llm_force_one_tool(tool))

    def request_llm_multiple_choices(self, n: int) -> list[AssistantMessage]:
        """Ask `n` times at once and return all replies. None is recorded: append the one you choose."""
        return self._call(self._session.request_llm_multiple_choices(n))

    def request_llm_streaming(self) -> Generator[StreamFrame]:
        """Ask with the prompt and the tools, and iterate over the reply, frame by frame."""
        return self._call.iterate(self._session.request_llm_streaming())

    @overload
    def request_llm_structured(
        self,
        output: type[T] | OutputSchema[T],
        *,
        examples: Sequence[T] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[T]: ...
    @overload
    def request_llm_structured(
        self,
        output: object,
        *,
        examples: Sequence[object] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[object]: ...
    def request_llm_structured(
        self,
        output: object,
        *,
        examples: Sequence[object] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[object]:
        """Ask for an answer of a type, and return it with the reply that it was read from."""
        return self._call(
            self._session.request_llm_structured(
                output,
                examples=examples,
                retries=retries,
                fixing_model=fixing_model,
                allow_tool_calls=allow_tool_calls,
            )
        )

    @overload
    def request_llm_structured_one_shot(
        self, output: type[T] | OutputSchema[T], *, examples: Sequence[T] = ()
    ) -> StructuredResult[T]: ...
    @overload
    def request_llm_structured_one_shot(
        self, output: object, *, examples: Sequence[object] = ()
    ) -> StructuredResult[object]: ...
    def request_llm_structured_one_shot(
        self, output: object, *, examples: Sequence[object] = ()
    ) -> StructuredResult[object]:
        """Ask once for an answer of a type; nothing is repaired. See `request_llm_structured`."""
        return self._call(self._session.request_llm_structured_one_shot(output, examples=examples))


class WriteSession(ReadSession, Editing):
    """Changes a context, asks its model and runs tools. See `tenure.WriteSession`."""

    def call_tool(
        self, tool: str | type | Tool | ToolFunction, args: Mapping[str, object] | None = None
    ) -> ToolOutcome:
        """Run a tool of the agent's, and return what came of it. The prompt is not touched."""
        return self._call(self._session.call_tool(tool, args))

    def call_tool_raw(
        self, tool: str | type | Tool | ToolFunction, args: Mapping[str, object] | None = None
    ) -> str:
        """Run a tool and return what a model would read: its text, or the error's. See `call_tool`."""
        return self._call(self._session.call_tool_raw(tool, args))

    def parallel_tool_calls(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int = 16,
        ordered: bool = False,
    ) -> Generator[ToolOutcome]:
        """Run a tool once for each of `args`, several at a time, and iterate over the outcomes."""
        outcomes = self._session.parallel_tool_calls(
            tool, args, concurrency=concurrency, ordered=ordered
        )
        return self._call.iterate(outcomes)

    def parallel_tool_calls_raw(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int = 16,
        ordered: bool = False,
    ) -> Generator[str]:
        """The same, but what a model would read of each outcome. See `parallel_tool_calls`."""
        texts = self._session.parallel_tool_calls_raw(
            tool, args, concurrency=concurrency, ordered=ordered
        )
        return self._call.iterate(texts)

    def replace_history_with_tldr(
        self,
        strategy: HistoryCompression | None = None,
        *,
        preserve_memory: bool = True,
        retrieval_model: object = None,
    ) -> None:
        """Put summaries in the place of what was said; `compression.py` says what stays."""
        self._call(
            self._session.replace_history_with_tldr(
                strategy, preserve_memory=preserve_memory, retrieval_model=retrieval_model
            )
        )

    def _change(self, state: SessionState) -> None:
        self._session._change(state)
