"""LLM sessions: short, locked blocks in which code reads or changes what an agent's model is asked.

A run has one `LLMContext`: its prompt, the tools that are offered, the model. Code opens a session on it:
`read_session()` (many at once) or `write_session()` (alone). A write session works on a copy; the context
takes it over when the block ends normally and stays as it was when it does not. What can be done inside
is in `sessions.py`.

A session cannot be opened inside another one of the same context: it would wait for itself. That holds
for whatever runs inside the block, tools and tasks started there included, as long as the block is open.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure.asking import Outside
from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.editing import SessionState
from tenure.errors import NestedSessionError
from tenure.messages import Message, SystemMessage
from tenure.models import Model
from tenure.prompt import Prompt
from tenure.recalled import Attached
from tenure.sessions import ReadSession, WriteSession
from tenure.tools import ToolSpec
from tenure.windows import TokenBudget

if TYPE_CHECKING:
    from types import TracebackType

S = TypeVar("S", bound=ReadSession)

LONG_WRITE_SESSION_S = 60.0
"""How long a write session may be held before a warning is logged, unless the agent says otherwise."""

_OWN = re.compile(r"tenure(\.(?!testing)|$)|contextlib$")  # modules that open sessions for others
_log = logging.getLogger(__name__)


class LLMContext:
    """What a run's model is asked: prompt, tools and model, behind one lock.

    Belongs to the event loop of its run; for other threads there is `tenure.sync.LLMContext`.

    Attributes:
        loop: That event loop; None if it was made where none was running.
    """

    def __init__(
        self,
        *,
        prompt: Prompt,
        model: Model,
        outside: Outside,
        system_prompt: SystemMessage | None = None,
        long_write_session_s: float | None = LONG_WRITE_SESSION_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Start from these; the model is offered all tools that can be run.

        Args:
            prompt: What the first request sends.
            model: Who is asked.
            outside: How requests reach the model, and which tools there are.
            system_prompt: The agent's own; sent first with every request, whatever the prompt holds.
            long_write_session_s: After how many seconds an open write session is warned of in the
                log, once; None for never.
            clock: Where the times and ids of messages come from.
        """
        self.loop = _running_loop()
        self._shared = _Shared(
            state=SessionState(prompt=prompt, tools=outside.tools.specs, model=model),
            outside=outside,
            system_prompt=system_prompt,
            long_write_session_s=long_write_session_s,
            clock=clock,
        )

    @property
    def prompt(self) -> Prompt:
        """The prompt as last committed, without waiting for a write session that is under way."""
        return self._shared.state.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered, as last committed."""
        return self._shared.state.tools

    @property
    def model(self) -> Model:
        """The model, as last committed."""
        return self._shared.state.model

    @property
    def dropped(self) -> tuple[Message, ...]:
        """The messages that committed sessions have taken out of the prompt, in order."""
        return self._shared.state.dropped

    def reset(self, prompt: Prompt) -> None:
        """Start from another prompt. Only while no session is open: before a run's strategy starts."""
        self._shared.state = replace(self._shared.state, prompt=prompt)

    def restore(self, messages: Iterable[Message], dropped: Sequence[Message]) -> None:
        """Go back to these messages, and to what had been taken out of them. Only while no session is
        open.
        """
        state = self._shared.state
        prompt = state.prompt.copy(messages=messages)
        self._shared.state = replace(state, prompt=prompt, dropped=tuple(dropped))

    def fork(self, outside: Outside) -> LLMContext:
        """A context that begins as this one is now, and goes its own way."""
        other = copy(self)
        other._shared = replace(self._shared, outside=outside, lock=_ReadWriteLock())
        return other

    def adopt(self, other: LLMContext) -> None:
        """Take over what another one has come to. Only while no session of either is open."""
        self._shared.state = other._shared.state

    def limit(self, budget: TokenBudget) -> None:
        """Have no request cost more than this; the oldest messages are left out of it first.

        Raises:
            BudgetError: (When asking) what cannot be left out costs more; see `windows.fitted`.
        """
        self._shared.budget = budget

    def attach(self, text: str) -> None:
        """Put a text in front of what the user says, in every request from now on and in no history.

        It stands at the head of the last message of the user that comes after this call and before the
        first request, and stays there. A request whose budget has no room for it goes without.
        """
        known = frozenset(message.id for message in self.prompt.messages)
        self._shared.attached = Attached(text, known)

    def read_session(self) -> Block[ReadSession]:
        """Open a session that can look and ask, but change nothing; with `async with`.

        Waits while a write session is open or waiting; other read sessions may be open meanwhile.

        Raises:
            NestedSessionError: A session of this context is open around this one.
        """
        return Block(self._shared, ReadSession, place=_caller())

    def write_session(self) -> Block[WriteSession]:
        """Open a session that may change prompt, tools, model and params; with `async with`.

        Waits until no other session is open; waiting sessions get in first come, first served. What
        was changed is committed, all together, when the block ends normally; when it raises or is
        cancelled, the context stays as it was, and replies that came inside the block are gone.

        Raises:
            NestedSessionError: A session of this context is open around this one.
        """
        return Block(self._shared, WriteSession, place=_caller())


@dataclass(slots=True, kw_only=True)
class _Shared:
    """What the sessions of one context have in common."""

    state: SessionState  # as last committed
    outside: Outside
    system_prompt: SystemMessage | None
    long_write_session_s: float | None
    clock: Clock
    budget: TokenBudget | None = None
    attached: Attached | None = None
    lock: _ReadWriteLock = field(default_factory=lambda: _ReadWriteLock())


class Block(Generic[S]):
    """One session's block: `async with` it, once. `tenure.sync` takes the same steps from a thread."""

    def __init__(self, shared: _Shared, kind: type[S], *, place: str) -> None:
        self.shared = shared
        self.session: S | None = None  # while it is open
        self._kind = kind
        self._place = place
        self._warning: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"the {'write' if self._is_writing else 'read'} session of {self._place}"

    async def __aenter__(self) -> S:
        self.check()
        session = await self.open()
        self.enter()
        return session

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()
        await self.close(commit=exc_type is None)

    def check(self) -> None:
        """Refuse to wait for a session that is open around this one."""
        for other in _around.get():
            if other.shared is self.shared and other.session is not None:
                raise NestedSessionError(
                    f"Cannot open {self!r} inside {other!r}, which is still open and which it "
                    "could wait for for ever. Use the open one, or let its block end first."
                )

    async def open(self) -> S:
        """Wait for the lock, and start from the context's present state."""
        shared = self.shared
        await shared.lock.acquire(exclusive=self._is_writing)
        self.session = self._kind(
            shared.state,
            shared.outside,
            system_prompt=shared.system_prompt,
            budget=shared.budget,
            attached=shared.attached,
            clock=shared.clock,
        )
        if self._is_writing and (seconds := shared.long_write_session_s) is not None:
            self._warning = asyncio.get_running_loop().call_later(seconds, self._warn, seconds)
        return self.session

    def enter(self) -> None:
        """Have what runs from here on, and the tasks that it starts, know of this session."""
        _around.set((*_around.get(), self))

    def leave(self) -> None:
        """End what `enter` began."""
        _around.set(tuple(block for block in _around.get() if block is not self))

    async def close(self, *, commit: bool) -> None:
        """End the session, hand its state to the context if asked to, and let the next one in."""
        session, self.session = self.session, None
        assert session is not None
        if self._warning is not None:
            self._warning.cancel()
        try:
            state = await session._end()  # pyright: ignore[reportPrivateUsage] # is ended here only
            if commit and self._is_writing:
                self.shared.state = state
        finally:
            self.shared.lock.release()

    @property
    def _is_writing(self) -> bool:
        return issubclass(self._kind, WriteSession)

    def _warn(self, seconds: float) -> None:
        _log.warning(
            "%r has been open for %g s, and all other sessions of its run wait for it; keep blocks "
            "short, and do slow work outside of them.",
            self,
            seconds,
        )


_around: ContextVar[tuple[Block[Any], ...]] = ContextVar("_around", default=())
"""The blocks that the running code is in. A task inherits them, and may outlive them."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _caller() -> str:
    """Where in the application a session is opened: function, file and line."""
    frame = inspect.currentframe()
    while frame is not None and _OWN.match(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        return "unknown code"
    name = frame.f_code.co_filename.rpartition("/")[2]
    return f"{frame.f_code.co_name} ({name}:{frame.f_lineno})"


class _ReadWriteLock:
    """Many readers or one writer, first come, first served; so a waiting writer is not starved.

    Our own, because aiorwlock lets writers starve readers, hides nesting (it is re-entrant), and wants a
    lock released by the task that took it, which a session opened from a thread cannot do.
    """

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
