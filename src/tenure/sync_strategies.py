"""Plain functions as strategies: what they are given, and the thread that they run in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tenure.sync_sessions import LLMContext

if TYPE_CHECKING:
    from tenure import run as _run
    from tenure.messages import Message, ToolCall, ToolMessage, Usage
    from tenure.structured import OutputSchema
    from tenure.tools import ToolRegistry


class RunContext:
    """What a plain strategy is given: the parts of `tenure.RunContext` that it can use.

    Attributes:
        llm: The prompt, the offered tools and the model, behind sessions that block.
    """

    def __init__(self, context: _run.RunContext) -> None:
        self.llm = LLMContext(context.llm)
        self._context = context

    @property
    def run_id(self) -> str:
        """Names this run."""
        return self._context.run_id

    @property
    def session_id(self) -> str | None:
        """The conversation, or None."""
        return self._context.session_id

    @property
    def input(self) -> str:
        """What the user said."""
        return self._context.input

    @property
    def tools(self) -> ToolRegistry:
        """The tools that can be run."""
        return self._context.tools

    @property
    def storage(self) -> dict[object, object]:
        """For whoever needs to keep something until the run ends."""
        return self._context.storage

    @property
    def usage(self) -> Usage:
        """The tokens of the requests so far."""
        return self._context.usage

    @property
    def output_schema(self) -> OutputSchema[object] | None:
        """The type that the run's output is to have; None for the reply's text."""
        return self._context.output_schema

    @property
    def conversation(self) -> list[Message]:
        """The prompt's messages as they are now, without the agent's own system prompt."""
        return self._context.conversation

    def execute_tools(self, calls: Sequence[ToolCall]) -> ToolMessage:
        """Run what a model called, at the same time, and return the results in the order of calls."""
        return self.llm._call(self._context.execute_tools(calls))  # pyright: ignore[reportPrivateUsage] # of the facade


PlainStrategy: TypeAlias = Callable[[RunContext, str], object]
"""What an agent does with an input: a function of the run's context and the text."""


def in_a_thread(strategy: PlainStrategy) -> _run.Strategy:
    """The strategy that runs a plain one in a worker thread.

    When the run is cancelled the thread cannot be stopped; the next thing that it asks of the context
    raises.
    """

    async def run(context: _run.RunContext, text: str) -> object:
        blocking = RunContext(context)
        try:
            return await asyncio.to_thread(strategy, blocking, text)
        finally:
            await blocking.llm._end()  # pyright: ignore[reportPrivateUsage] # of the facade

    return run
