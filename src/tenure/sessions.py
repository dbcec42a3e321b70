"""The two LLM sessions: what code does inside `ctx.llm.read_session()` and `ctx.llm.write_session()`.

Every request is made here, in one way: the session's messages, a valid view of them (`views.py`), calls
of tools that are not offered as text, then the model. Requests go out at once, and only when asked for. A
read session returns replies; a write session appends each of them to its prompt as well, whole. How a
block opens and commits is in `llm.py`, what it can change without asking in `editing.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar, cast, overload

from tenure.clock import Clock
from tenure.editing import Editing, Reading, SessionState
from tenure.errors import InvalidValueError, SessionClosedError, StructuredOutputError, UsageError
from tenure.messages import AssistantMessage, AssistantPart, Message, SystemMessage, user
from tenure.models import (
    Model,
    ModelRequest,
    StreamEnd,
    StreamFrame,
    checked_reply,
    resolve_model,
)
from tenure.parallel import mapped
from tenure.prompt import NamedTool, ToolChoice
from tenure.structured import OutputSchema, StructuredResult
from tenure.tools import Tool, ToolFunction, ToolOutcome, ToolRegistry, ToolSpec
from tenure.views import valid_view, with_call_ids, with_tools_as_text

T = TypeVar("T")


class Outside(Protocol):
    """How a session reaches models and tools; a run has its hooks, events and limits in here."""

    @property
    def tools(self) -> ToolRegistry:
        """The tools that can be run."""
        ...

    async def ask(self, model: Model, request: ModelRequest) -> AssistantMessage:
        """Have a model answer."""
        ...

    def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        """Have a model answer frame by frame; raises when the stream has no `StreamEnd`."""
        ...

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        """Run a tool."""
        ...


class ReadSession(Reading):
    """Looks at a context and asks its model. Replies are returned, not recorded.

    All requests raise `ModelError` when the model could not answer or answered with nothing, and then
    nothing has changed. Everything raises `SessionClosedError` once the block has ended.
    """

    def __init__(
        self,
        state: SessionState,
        outside: Outside,
        *,
        system_prompt: SystemMessage | None,
        clock: Clock,
    ) -> None:
        self._current: SessionState | None = state
        self._outside = outside
        self._system_prompt = system_prompt
        self._clock = clock
        self._open_streams: list[AsyncGenerator[object]] = []

    # --- requests ---

    async def request_llm(self) -> AssistantMessage:
        """Ask with the prompt and the tools, and return the whole reply.

        `reply.primary` is its first tool call, or else its text.
        """
        return self._recorded(await self._answer(self._request()))

    async def request_llm_multiple(self) -> list[AssistantPart]:
        """Ask with the prompt and the tools, and return the parts of the reply, in order."""
        return list((await self.request_llm()).parts)

    async def request_llm_without_tools(self) -> AssistantMessage:
        """Ask with no tools; the calls and results in the history are sent as text."""
        return self._recorded(await self._answer(self._request(tools=())))

    async def request_llm_only_calling_tools(self) -> AssistantMessage:
        """Ask, and have the model call at least one tool.

        Raises:
            UsageError: The session offers no tools.
        """
        if not self.tools:
            raise UsageError(
                "Unable to force a tool call because this session offers no tools; set session.tools."
            )
        return self._recorded(await self._answer(self._request(tool_choice="required")))

    async def request_llm_force_one_tool(
        self, tool: str | ToolSpec | Tool | ToolFunction
    ) -> AssistantMessage:
        """Ask, and have the model call exactly this tool.

        Raises:
            UsageError: The session does not offer it.
        """
        name = tool if isinstance(tool, str) else getattr(tool, "name", None)
        name = name if isinstance(name, str) else getattr(tool, "__name__", repr(tool))
        offered = [spec.name for spec in self.tools]
        if name not in offered:
            raise UsageError(
                f"Unable to force call to tool `{name}` because it is not defined; this session "
                f"offers: {', '.join(offered) or 'none'}."
            )
        return self._recorded(await self._answer(self._request(tool_choice=NamedTool(name))))

    async def request_llm_multiple_choices(self, n: int) -> list[AssistantMessage]:
        """Ask `n` times at once and return all replies. None is recorded: append the one you choose.

        When one request fails, the others are cancelled, and its error is raised.

        Raises:
            InvalidValueError: `n` is less than 1.
        """
        if n < 1:
            raise InvalidValueError(f"{n} choices cannot be; give 1 or more.")
        requests = [self._request()] * n
        replies = mapped(self._answer, requests, concurrency=n, ordered=False)
        async with aclosing(replies):
            return [reply async for reply in replies]

    def request_llm_streaming(self) -> AsyncGenerator[StreamFrame]:
        """Ask with the prompt and the tools, and iterate over the reply, frame by frame.

        The last frame is a `StreamEnd` with the whole reply; a write session has appended it then.
        Nothing is sent before the first frame is awaited. When iteration is left early, fails or is
        cancelled, nothing is appended, and the connection is closed when the block ends at the latest.
        """
        return self._following(self._streamed(self._request()))

    # --- structured requests ---

    @overload
    async def request_llm_structured(
        self,
        output: type[T] | OutputSchema[T],
        *,
        examples: Sequence[T] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[T]: ...
    @overload
    async def request_llm_structured(
        self,
        output: object,
        *,
        examples: Sequence[object] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[object]: ...
    async def request_llm_structured(
        self,
        output: object,
        *,
        examples: Sequence[object] = (),
        retries: int = 1,
        fixing_model: object = None,
        allow_tool_calls: bool = False,
    ) -> StructuredResult[object]:
        """Ask for an answer of a type, and return it with the reply that it was read from.

        The model is held to the type's JSON schema by its provider, if that can be; otherwise it is
        told, in a message that only this request has. An answer that is not of the type comes as
        the result's `error`, and is not recorded. A reply that is recorded is so in its own words.

        Args:
            output: A type that pydantic knows, a JSON schema, or an `OutputSchema`.
            examples: Answers as they could be, to show to the model.
            retries: How often a model may put right an answer that is not of the type; each time it
                is shown the schema, the answer and the mistake, and not the history.
            fixing_model: Who does that; this session's model by default.
            allow_tool_calls: Whether to offer the session's tools. A reply that calls some is
                recorded and returned with neither value nor error.

        Raises:
            InvalidValueError: The type has no schema, or `retries` is negative.
        """
        if retries < 0:
            raise InvalidValueError(f"retries={retries} cannot be; retries must be no less than 0.")
        schema: OutputSchema[object] = (
            cast("OutputSchema[object]", output)
            if isinstance(output, OutputSchema)
            else OutputSchema(output)
        )
        fixer = resolve_model(fixing_model) if fixing_model is not None else self.model
        tools = self.tools if allow_tool_calls else ()
        # Not every provider can enforce a schema and offer tools in one request.
        is_native = self.model.profile.has_native_schema and not tools
        said = schema.instruction(examples, with_schema=not is_native)
        reply = await self._answer(
            self._request(
                tools=tools,
                instruction=said,
                schema=schema if is_native else None,
            )
        )
        if tools and reply.tool_calls:
            return StructuredResult(message=self._recorded(reply))
        try:
            value = await schema.parse_or_repair(
                reply.text, retries=retries, ask=partial(self._repaired, fixer, schema)
            )
        except StructuredOutputError as error:
            return StructuredResult(message=reply, error=error)
        return StructuredResult(message=self._recorded(reply), value=value)

    @overload
    async def request_llm_structured_one_shot(
        self, output: type[T] | OutputSchema[T], *, examples: Sequence[T] = ()
    ) -> StructuredResult[T]: ...
    @overload
    async def request_llm_structured_one_shot(
        self, output: object, *, examples: Sequence[object] = ()
    ) -> StructuredResult[object]: ...
    async def request_llm_structured_one_shot(
        self, output: object, *, examples: Sequence[object] = ()
    ) -> StructuredResult[object]:
        """Ask once for an answer of a type; nothing is repaired. See `request_llm_structured`.

        Raises:
            StructuredOutputError: The answer is not of the type; nothing is recorded.
        """
        result = await self.request_llm_structured(output, examples=examples, retries=0)
        result.unwrap()
        return result

    async def _repaired(self, fixer: Model, schema: OutputSchema[object], told: str) -> str:
        repair = ModelRequest(
            messages=(user(told, clock=self._clock),),
            output_schema=schema.json_schema if fixer.profile.has_native_schema else None,
        )
        return checked_reply(await self._outside.ask(fixer, repair)).text

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
        messages: list[Message] = [*state.prompt.messages]
        if instruction:
            messages.append(user(instruction, clock=self._clock))
        offered = state.tools if tools is None else tools
        view = valid_view(messages, system_prompt=self._system_prompt)
        return ModelRequest(
            messages=tuple(with_tools_as_text(view, offered={spec.name for spec in offered})),
            tools=offered,
            params=params,
            output_schema=schema.json_schema if schema is not None else None,
        )

    async def _answer(self, request: ModelRequest) -> AssistantMessage:
        return _whole(await self._outside.ask(self.model, request))

    async def _streamed(self, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        async with aclosing(self._outside.stream(self.model, request)) as frames:
            async for frame in frames:
                if isinstance(frame, StreamEnd):
                    frame = StreamEnd(message=self._recorded(_whole(frame.message)))
                yield frame

    async def _following(self, stream: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """A stream that ends with the session: used after the block it raises `SessionClosedError`."""
        self._open_streams.append(stream)
        async with aclosing(stream):
            while True:
                self._state  # noqa: B018 # raises when the block has ended
                try:
                    item = await anext(stream)
                except StopAsyncIteration:
                    break
                yield item
        self._open_streams.remove(stream)

    def _recorded(self, reply: AssistantMessage) -> AssistantMessage:
        """Record a reply, where this session does; return it."""
        return reply

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
        for stream in self._open_streams:
            with suppress(Exception):  # whoever has left a stream does not want its errors
                await stream.aclose()
        return state


class WriteSession(ReadSession, Editing):
    """Changes a context, asks its model and runs tools. Replies are appended to the prompt, whole.

    See `ReadSession` for the requests and `Editing` for what changes the history.
    """

    async def call_tool(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Mapping[str, object] | None = None,
    ) -> ToolOutcome:
        """Run a tool of the agent's, and return what came of it. The prompt is not touched.

        Args:
            tool: Its name, the tool or function itself, or the class of which it is an object.
            args: By parameter name; validated as a model's are.

        Raises:
            UnknownToolError: The agent has no such tool. Whatever goes wrong in it is in the outcome.
        """
        found = self._found(tool)
        return await self._outside.call_tool(found, args if args is not None else {})

    async def call_tool_raw(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Mapping[str, object] | None = None,
    ) -> str:
        """Run a tool and return what a model would read: its text, or the error's. See `call_tool`."""
        return (await self.call_tool(tool, args)).text

    def parallel_tool_calls(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int = 16,
        ordered: bool = False,
    ) -> AsyncGenerator[ToolOutcome]:
        """Run a tool once for each of `args`, several at a time, and iterate over the outcomes.

        Nothing runs before the first outcome is awaited, and `args` is taken from only as there is
        room. Leaving the iteration, an error in `args` or cancellation cancels the calls under way.

        Args:
            tool: See `call_tool`.
            args: The arguments of each call.
            concurrency: How many calls may be running or have an outcome that was not taken yet.
            ordered: Whether outcomes come in the order of `args`; otherwise as the calls finish.

        Raises:
            UnknownToolError: The agent has no such tool; at once.
            InvalidValueError: `concurrency` is less than 1; at once.
        """
        found = self._found(tool)
        if concurrency < 1:
            raise InvalidValueError(f"concurrency={concurrency} cannot be; give 1 or more.")

        async def call(own: Mapping[str, object]) -> ToolOutcome:
            return await self._outside.call_tool(found, own)

        return self._following(mapped(call, args, concurrency=concurrency, ordered=ordered))

    def parallel_tool_calls_raw(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int = 16,
        ordered: bool = False,
    ) -> AsyncGenerator[str]:
        """The same, but what a model would read of each outcome. See `parallel_tool_calls`."""
        return _texts(
            self.parallel_tool_calls(tool, args, concurrency=concurrency, ordered=ordered)
        )

    def _found(self, tool: str | type | Tool | ToolFunction) -> Tool:
        self._state  # noqa: B018 # raises when the block has ended
        return self._outside.tools.find(tool)

    def _recorded(self, reply: AssistantMessage) -> AssistantMessage:
        self.append_prompt(reply)
        return reply

    def _change(self, state: SessionState) -> None:
        self._state  # noqa: B018 # raises when the block has ended
        self._current = state


def _whole(reply: AssistantMessage) -> AssistantMessage:
    """A reply that says something, with an id on every tool call."""
    return cast("AssistantMessage", with_call_ids([checked_reply(reply)])[0])


async def _texts(outcomes: AsyncGenerator[ToolOutcome]) -> AsyncGenerator[str]:
    async with aclosing(outcomes):
        async for outcome in outcomes:
            yield outcome.text
