"""LLM sessions: short, locked blocks in which code reads or changes what an agent's model is asked.

A run has one `LLMContext`: its prompt, the tools that are offered, the model. Code opens a session on it:
`read_session()` (many at once) or `write_session()` (alone). A write session works on a copy; the context
takes it over when the block ends normally and stays as it was when it does not. What the model is sent is
always `views.valid_view` of the prompt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias, cast

from tenure.errors import SessionClosedError, UsageError
from tenure.messages import AssistantMessage, Message, SystemMessage
from tenure.models import Model, ModelRequest, checked_reply
from tenure.prompt import Prompt
from tenure.tools import ToolSpec
from tenure.views import valid_view, with_call_ids

Ask: TypeAlias = Callable[[Model, ModelRequest], Awaitable[AssistantMessage]]
"""How a request reaches the model; a run puts its hooks, limits and streaming in here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What a session reads, and what a write session commits."""

    prompt: Prompt
    tools: tuple[ToolSpec, ...]
    model: Model


class LLMContext:
    """What a run's model is asked: prompt, tools and model, behind one lock."""

    def __init__(
        self,
        *,
        prompt: Prompt,
        model: Model,
        ask: Ask,
        tools: tuple[ToolSpec, ...] = (),
        system_prompt: SystemMessage | None = None,
    ) -> None:
        """Start from these.

        Args:
            prompt: What the first request sends.
            model: Who is asked.
            ask: How a request reaches the model.
            tools: What the model is offered.
            system_prompt: The agent's own; sent first with every request, whatever the prompt holds.
        """
        self._state = _State(prompt=prompt, tools=tools, model=model)
        self._system_prompt = system_prompt
        self._ask = ask
        self._lock = _ReadWriteLock()
        self._inside: set[asyncio.Task[object] | None] = set()  # the tasks with an open session

    @property
    def prompt(self) -> Prompt:
        """The prompt as last committed, without waiting for a write session that is under way."""
        return self._state.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered, as last committed."""
        return self._state.tools

    @property
    def model(self) -> Model:
        """The model, as last committed."""
        return self._state.model

    def reset(self, prompt: Prompt) -> None:
        """Start from another prompt. Only while no session is open: before a run's strategy starts."""
        self._state = _State(prompt=prompt, tools=self.tools, model=self.model)

    @asynccontextmanager
    async def read_session(self) -> AsyncGenerator[ReadSession]:
        """Open a session that can look and ask, but change nothing.

        Waits while a write session is open or waiting; other read sessions may be open meanwhile.

        Raises:
            UsageError: This task has a session open already.
        """
        async with self._alone(exclusive=False):
            session = ReadSession(self._state, self._request)
            try:
                yield session
            finally:
                session._close()  # pyright: ignore[reportPrivateUsage] # is closed here only

    @asynccontextmanager
    async def write_session(self) -> AsyncGenerator[WriteSession]:
        """Open a session that may change the prompt.

        Waits until no other session is open; waiting sessions get in first come, first served. What
        was changed is committed when the block ends normally; when it raises or is cancelled, the
        context stays as it was.

        Raises:
            UsageError: This task has a session open already.
        """
        async with self._alone(exclusive=True):
            session = WriteSession(self._state, self._request)
            try:
                yield session
                self._state = session._state  # pyright: ignore[reportPrivateUsage] # the commit
            finally:
                session._close()  # pyright: ignore[reportPrivateUsage] # is closed here only

    @asynccontextmanager
    async def _alone(self, *, exclusive: bool) -> AsyncGenerator[None]:
        """Hold the lock, unless this task does: it would wait for itself for ever."""
        task = asyncio.current_task()
        if task in self._inside:
            raise UsageError(
                "This task has an LLM session open already and would wait for itself; use that one, "
                "or let its block end first."
            )
        await self._lock.acquire(exclusive=exclusive)
        self._inside.add(task)
        try:
            yield
        finally:
            self._inside.discard(task)
            self._lock.release()

    async def _request(self, state: _State) -> AssistantMessage:
        view = valid_view(state.prompt.messages, system_prompt=self._system_prompt)
        request = ModelRequest(messages=tuple(view), tools=state.tools, params=state.prompt.params)
        reply = checked_reply(await self._ask(state.model, request))
        return cast("AssistantMessage", with_call_ids([reply])[0])


class ReadSession:
    """Looks at a context and asks its model. Replies are returned, not recorded."""

    def __init__(
        self, state: _State, request: Callable[[_State], Awaitable[AssistantMessage]]
    ) -> None:
        self._current: _State | None = state
        self._request = request

    @property
    def prompt(self) -> Prompt:
        """The prompt of this session."""
        return self._state.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered."""
        return self._state.tools

    @property
    def model(self) -> Model:
        """The model that is asked."""
        return self._state.model

    async def request_llm(self) -> AssistantMessage:
        """Ask the model with the prompt and the tools, and return its whole reply.

        Raises:
            ModelError: It could not answer, or answered with nothing.
            SessionClosedError: The block has ended.
        """
        return await self._request(self._state)

    @property
    def _state(self) -> _State:
        if self._current is None:
            raise SessionClosedError
        return self._current

    def _close(self) -> None:
        self._current = None


class WriteSession(ReadSession):
    """Changes a context and asks its model. Replies are appended to the prompt, whole."""

    def append_prompt(self, *messages: Message, strict: bool = True) -> None:
        """Append messages, each tool result behind its call; see `Prompt.appended`.

        Raises:
            PromptError: A tool result has no call, or the call has a result already.
            SessionClosedError: The block has ended.
        """
        state = self._state
        self._change(state, state.prompt.appended(*messages, strict=strict))

    async def request_llm(self) -> AssistantMessage:
        """Ask the model with the prompt and the tools, append its whole reply and return it.

        Raises:
            ModelError: It could not answer, or answered with nothing; nothing was appended.
            SessionClosedError: The block has ended.
        """
        reply = await super().request_llm()
        self.append_prompt(reply)
        return reply

    def _change(self, state: _State, prompt: Prompt) -> None:
        self._current = _State(prompt=prompt, tools=state.tools, model=state.model)


class _ReadWriteLock:
    """Many readers or one writer, first come, first served; so a waiting writer is not starved."""

    def __init__(self) -> None:
        self._holders = 0  # readers inside, or -1 for a writer
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    async def acquire(self, *, exclusive: bool) -> None:
        if not self._waiting and self._is_free(exclusive):
            self._enter(exclusive)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((exclusive, turn))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release()  # its turn came together with the cancellation
            else:
                with suppress(ValueError):  # it may have been skipped already
                    self._waiting.remove((exclusive, turn))
                self._let_in()
            raise

    def release(self) -> None:
        self._holders = 0 if self._holders == -1 else self._holders - 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._is_free(self._waiting[0][0]):
            exclusive, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._enter(exclusive)
                turn.set_result(None)

    def _is_free(self, exclusive: bool) -> bool:
        return self._holders == 0 if exclusive else self._holders >= 0

    def _enter(self, exclusive: bool) -> None:
        self._holders = -1 if exclusive else self._holders + 1
