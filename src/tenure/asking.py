"""How an LLM session asks: what every kind of request has in common.

There is one way to a model: the session's messages, a valid view of them (`views.py`) that fits the
budget (`windows.py`), calls of tools that are not offered as text, then the model. `sessions.py` has the
kinds of request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from tenure.clock import Clock
from tenure.editing import Reading, SessionState
from tenure.errors import BudgetError, SessionClosedError, UsageError
from tenure.messages import AssistantMessage, Message, SystemMessage
from tenure.models import Model, ModelRequest, StreamEnd, StreamFrame, checked_reply
from tenure.prompt import NamedTool, ToolChoice
from tenure.recalled import Attached
from tenure.saying import system, user
from tenure.streams import SessionStream
from tenure.structured import OutputSchema
from tenure.tokens import TokenEstimator
from tenure.tools import Tool, ToolOutcome, ToolRegistry, ToolSpec
from tenure.views import valid_view, with_call_ids, with_tools_as_text
from tenure.windows import TokenBudget, cost_as_text, fitted

T = TypeVar("T")


class Outside(Protocol):
    """How a session reaches models and tools; a run has its hooks, events and limits in here."""

    @property
    def tools(self) -> ToolRegistry:
        """The tools that can be run."""
        ...

    async def ask(
        self, model: Model, request: ModelRequest, *, aside: bool = False
    ) -> AssistantMessage:
        """Have a model answer.

        Args:
            model: Who is asked.
            request: What it is asked.
            aside: Whether this is a question of the code's own, such as one for a summary, whose
                answer is not streamed to whoever watches the run.
        """
        ...

    def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        """Have a model answer frame by frame; raises when the stream has no `StreamEnd`."""
        ...

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        """Run a tool."""
        ...


class Asking(Reading):
    """The part of a session that makes requests."""

    def __init__(
        self,
        state: SessionState,
        outside: Outside,
        *,
        system_prompt: SystemMessage | None,
        budget: TokenBudget | None,
        attached: Attached | None,
        clock: Clock,
    ) -> None:
        self._current: SessionState | None = state
        self._outside = outside
        self._system_prompt = system_prompt
        self._budget = budget
        self._attached = attached
        self._clock = clock
        self._streams: list[SessionStream[Any]] = []

    # --- how a request is made ---

    def _request(
        self,
        *,
        tools: tuple[ToolSpec, ...] | None = None,
        tool_choice: ToolChoice | None = None,
        instruction: str = "",
        schema: OutputSchema[object] | None = None,
    ) -> ModelRequest:
        """What is sent now: with other tools or another tool choice if given, an instruction last."""
        state = self._state
        params = state.prompt.params
        if tool_choice is not None or tools == ():
            params = replace(params, tool_choice=tool_choice)
        offered = state.tools if tools is None else tools
        _require_offered(params.tool_choice, offered)
        said = [user(instruction, clock=self._clock)] if instruction else []
        messages = state.prompt.messages
        shown = self._attached.put(messages) if self._attached is not None else messages
        try:
            view = self._view(shown, said, offered)
        except BudgetError:
            if shown is messages:
                raise
            view = self._view(messages, said, offered)  # what is attached has no room
        return ModelRequest(
            messages=tuple(view),
            tools=offered,
            params=params,
            output_schema=schema.json_schema if schema is not None else None,
        )

    def _view(
        self, messages: Sequence[Message], said: Sequence[Message], offered: Sequence[ToolSpec]
    ) -> list[Message]:
        """The valid view of messages that fits the budget, and behind it what is said whatever it costs."""
        view = valid_view([*messages, *said], system_prompt=self._system_prompt)
        last = [view.pop() for _ in said]
        names = {spec.name for spec in offered}
        if (budget := self._budget) is not None:
            left = budget.for_messages(offered) - sum(map(budget.counter, last))
            counter = partial(cost_as_text, budget.counter, names)
            view = fitted(view, left, counter=counter, options=budget.options)
        return with_tools_as_text([*view, *last], offered=names)

    async def _answer(self, request: ModelRequest, *, aside: bool = False) -> AssistantMessage:
        return self._taken(request, await self._outside.ask(self.model, request, aside=aside))

    async def _ask_aside(
        self,
        model: Model,
        text: str,
        *,
        system_prompt: str = "",
        schema: OutputSchema[T] | None = None,
    ) -> AssistantMessage:
        """Have a model answer a text by itself, without the history, which stays as it is."""
        told: list[Message] = [system(system_prompt, clock=self._clock)] if system_prompt else []
        is_native = schema is not None and model.profile.has_native_schema
        request = ModelRequest(
            messages=(*told, user(text, clock=self._clock)),
            params=replace(self.prompt.params, tool_choice=None),
            output_schema=schema.json_schema if schema is not None and is_native else None,
        )
        return checked_reply(await self._outside.ask(model, request, aside=True))

    def _taken(self, request: ModelRequest, reply: AssistantMessage) -> AssistantMessage:
        """A reply that says something, with an id on every tool call; the counter learns from it."""
        if self._budget is not None and reply.usage is not None:
            counter = self._budget.counter
            if isinstance(counter, TokenEstimator):
                counter.learn(request.messages, request.tools, reply.usage)
        return cast("AssistantMessage", with_call_ids([checked_reply(reply)])[0])

    async def _streamed(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        async with aclosing(self._outside.stream(model, request)) as frames:
            async for frame in frames:
                if isinstance(frame, StreamEnd):
                    frame = StreamEnd(message=self._taken(request, frame.message))
                yield frame

    def _record_end(self, frame: StreamFrame) -> None:
        """Record a streamed reply: when its reader gets it, since one who was cancelled has none."""
        if isinstance(frame, StreamEnd):
            self._recorded(frame.message)

    def _stream_of(
        self, items: AsyncGenerator[T], *, handed_over: Callable[[T], object] | None = None
    ) -> SessionStream[T]:
        """A stream that ends with this session at the latest."""
        stream = SessionStream(items, self._require_open, handed_over)
        self._streams.append(stream)
        return stream

    def _recorded(self, reply: AssistantMessage) -> AssistantMessage:
        """Record a reply, where this session does; return it."""
        self._require_open()
        return reply

    def _require_open(self) -> None:
        if self._current is None:
            raise SessionClosedError

    @property
    def _state(self) -> SessionState:
        if self._current is None:
            raise SessionClosedError
        return self._current

    async def _end(self) -> SessionState:
        """End the session, as the end of its block does, and return what state it has come to.

        Nothing works from here on; streams that were not read to their end are broken off.
        """
        state, self._current = self._state, None
        for stream in self._streams:  # all of them, even if this is cancelled while one is ending
            stream.break_off()
        for stream in self._streams:
            await stream.aclose()
        return state


def _require_offered(choice: ToolChoice | None, offered: tuple[ToolSpec, ...]) -> None:
    """Refuse to force what the model is not even told of."""
    if choice == "required" and not offered:
        raise UsageError(
            "Unable to force a tool call because this session offers no tools; set session.tools."
        )
    names = [spec.name for spec in offered]
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise UsageError(
            f"Unable to force call to tool `{choice.name}` because it is not defined; this session "
            f"offers: {', '.join(names) or 'none'}."
        )
