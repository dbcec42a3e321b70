"""The agent for code without async: the same names, blocking.

Everything runs on one event loop in a daemon thread that all of a process shares, started by the first
call. Where an event loop is running already, in async code or a notebook, use `tenure.Agent` and await it.
A strategy may be a plain function here; `sync_sessions.py` has what it is given. `LLMContext` opens LLM
sessions from any thread, such as that of a plain tool of an async agent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, cast

from tenure.agent import AgentBase
from tenure.models import TextDelta
from tenure.portal import PORTAL
from tenure.run import Strategy
from tenure.signatures import is_async
from tenure.sync_memories import Memories
from tenure.sync_sessions import LLMContext, ReadSession, WriteSession
from tenure.sync_strategies import PlainStrategy, RunContext, in_a_thread

if TYPE_CHECKING:
    from types import TracebackType

    from tenure import agent as _async
    from tenure.events import Event, RunResult

__all__ = [
    "Agent",
    "LLMContext",
    "Memories",
    "PlainStrategy",
    "ReadSession",
    "RunContext",
    "RunStream",
    "WriteSession",
]


class Agent(AgentBase[Strategy | PlainStrategy]):
    """Answers, with tools and memory.

    May be used from several threads at once. Async strategies, hooks, handlers and async tools run in
    the loop's thread, a plain strategy in a thread of its own. Ctrl-C in a waiting call cancels the run.
    """

    def _async_strategy(self, strategy: Strategy | PlainStrategy) -> Strategy:
        if is_async(strategy):
            return cast("Strategy", strategy)
        return in_a_thread(cast("PlainStrategy", strategy))

    @property
    def memory(self) -> Memories:
        """The agent's long-term memories.

        See `tenure.Agent.memory`.
        """
        return Memories(self._own_memories)

    def run(self, text: str, session_id: str | None = None) -> RunResult:
        """Answer one input.

        Args and errors are those of `tenure.Agent.run`; and `UsageError` where an event loop runs.
        """
        return PORTAL.call(self._run(text, session_id))

    def ask(self, text: str) -> str:
        """Answer one input in the agent's own default conversation, and return the text.

        See `tenure.Agent.ask`.
        """
        return PORTAL.call(self._ask(text))

    def run_stream(self, text: str, session_id: str | None = None) -> RunStream:
        """Answer one input, event by event; `run` says the rest.

        See `tenure.Agent.run_stream`.
        """
        return RunStream(self._stream(text, session_id))


class RunStream:
    """The events of one run, as an iterable; the last one is `RunCompleted`.

    Leaving the loop early, or the `with` block around it, cancels the run.
    """

    def __init__(self, stream: _async.RunStream) -> None:
        self._stream = stream

    @property
    def result(self) -> RunResult | None:
        """What the run gave; None until it has completed."""
        return self._stream.result

    def __iter__(self) -> Iterator[Event]:
        return self._produce()  # is let go with the loop, and then ends the run

    def text(self) -> Iterator[str]:
        """Iterate over the pieces of the replies' text only."""
        return (event.text for event in self if isinstance(event, TextDelta))

    def __enter__(self) -> RunStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _produce(self) -> Generator[Event]:
        events = aiter(self._stream)

        async def next_event() -> Event | None:
            return await anext(events, None)

        # A call that raises, be it for Ctrl-C, has ended the run itself.
        while (event := PORTAL.call(next_event())) is not None:
            try:
                yield event
            except BaseException:
                self._close()
                raise

    def _close(self) -> None:
        PORTAL.call(self._stream.__aexit__(None, None, None))
