"""The two LLM sessions: what code does inside `ctx.llm.read_session()` and `ctx.llm.write_session()`.

Requests go out at once, and only when asked for; `asking.py` says how each is made. A read session returns
replies; a write session appends each of them to its prompt as well, whole. How a block opens and commits
is in `llm.py`, what it can change without asking in `editing.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar, cast, overload

from tenure.asking import Asking
from tenure.compression import HistoryCompression, WholeHistory, checked_strategy
from tenure.editing import Editing, SessionState
from tenure.errors import InvalidValueError, StructuredOutputError
from tenure.marks import is_memory
from tenure.messages import AssistantMessage, AssistantPart, Message
from tenure.models import Model, StreamFrame, resolve_model
from tenure.parallel import mapped
from tenure.prompt import NamedTool
from tenure.streams import SessionStream
from tenure.structured import OutputSchema, StructuredResult
from tenure.summaries import FACT_RETRIES, Summarizer
from tenure.tools import Tool, ToolFunction, ToolOutcome, ToolSpec

T = TypeVar("T")


class ReadSession(Asking):
    """Looks at a context and asks its model. Replies are returned, not recorded.

    All requests raise `ModelError` when the model could not answer or answered with nothing, and then
    nothing has changed. Everything raises `SessionClosedError` once the block has ended.
    """

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

        A model that cannot be forced may answer in words: look at `reply.tool_calls`.

        Raises:
            UsageError: The session offers no tools.
        """
        return self._recorded(await self._answer(self._request(tool_choice="required")))

    async def request_llm_force_one_tool(
        self, tool: str | type | ToolSpec | Tool | ToolFunction
    ) -> AssistantMessage:
        """Ask, and have the model call exactly this tool.

        A model that cannot be forced may answer in words: look at `reply.tool_calls`.

        Args:
            tool: Its name or what it is offered as; or a tool of the agent's, as for `call_tool`.

        Raises:
            UsageError: The session does not offer it.
        """
        if isinstance(tool, ToolSpec):
            name = tool.name
        else:
            name = tool if isinstance(tool, str) else self._outside.tools.find(tool).name
        return self._recorded(await self._answer(self._request(tool_choice=NamedTool(name))))

    async def request_llm_multiple_choices(self, n: int) -> list[AssistantMessage]:
        """Ask `n` times at once and return all replies. None is recorded: append the one you choose.

        They come in the order in which the model gave them, and are not streamed in any run.
        When one request fails, the others are cancelled, and its error is raised.

        Raises:
            InvalidValueError: `n` is less than 1.
        """
        if n < 1:
            raise InvalidValueError(f"{n} choices cannot be; give 1 or more.")
        requests = [self._request()] * n
        ask = partial(self._answer, aside=True)
        replies = mapped(ask, requests, concurrency=n, ordered=False)
        async with aclosing(replies):
            found = [reply async for reply in replies]
        self._require_open()
        return found

    def request_llm_streaming(self) -> SessionStream[StreamFrame]:
        """Ask with the prompt and the tools, and iterate over the reply, frame by frame.

        The last frame is a `StreamEnd` with the whole reply; a write session has appended it then.
        Nothing is sent before the first frame is awaited; prompt and model are those of this call. When
        iteration is left early, fails or is cancelled, nothing is appended, and the connection is
        closed when the block ends at the latest.
        """
        frames = self._streamed(self.model, self._request())
        return self._stream_of(frames, handed_over=self._record_end)

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
        fixer = self._or_own(fixing_model)
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
            value = await self._parsed(schema, reply.text, retries=retries, fixer=fixer)
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

    def _summarizer(
        self, retrieval_model: object = None, *, memory: tuple[Message, ...] = ()
    ) -> Summarizer:
        """What has messages put into words, until this session ends; nothing of that is recorded."""
        model = self._or_own(retrieval_model)

        async def ask(system_prompt: str, text: str) -> AssistantMessage:
            return await self._ask_aside(model, text, system_prompt=system_prompt)

        async def ask_for(
            system_prompt: str, text: str, schema: OutputSchema[list[str]]
        ) -> list[str]:
            with_schema = not model.profile.has_native_schema
            told = "\n\n".join((text, schema.instruction(with_schema=with_schema)))
            reply = await self._ask_aside(
                model, told.rstrip(), system_prompt=system_prompt, schema=schema
            )
            return await self._parsed(schema, reply.text, retries=FACT_RETRIES, fixer=model)

        return Summarizer(memory=memory, ask=ask, ask_for=ask_for, clock=self._clock)

    async def _parsed(self, schema: OutputSchema[T], text: str, *, retries: int, fixer: Model) -> T:
        async def repaired(told: str) -> str:
            return (await self._ask_aside(fixer, told, schema=schema)).text

        return await schema.parse_or_repair(text, retries=retries, ask=repaired)

    def _or_own(self, model: object) -> Model:
        return self.model if model is None else resolve_model(model)


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
            InvalidValueError: `args` is no mapping.
        """
        found = self._found(tool)
        return await self._outside.call_tool(found, _by_name(args if args is not None else {}))

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
    ) -> SessionStream[ToolOutcome]:
        """Run a tool once for each of `args`, several at a time, and iterate over the outcomes.

        Nothing runs before the first outcome is awaited, and `args` is taken from only as there is
        room. An error in `args`, cancellation, closing the iterator and the end of the block cancel the
        calls under way; leaving an `async for` early does not close its iterator.

        Args:
            tool: See `call_tool`.
            args: The arguments of each call.
            concurrency: How many calls may be running or have an outcome that was not taken yet.
            ordered: Whether outcomes come in the order of `args`; otherwise as the calls finish.

        Raises:
            UnknownToolError: The agent has no such tool; at once.
            InvalidValueError: `concurrency` is less than 1; at once.
        """
        return self._stream_of(self._outcomes(tool, args, concurrency=concurrency, ordered=ordered))

    def parallel_tool_calls_raw(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int = 16,
        ordered: bool = False,
    ) -> SessionStream[str]:
        """The same, but what a model would read of each outcome. See `parallel_tool_calls`."""
        outcomes = self._outcomes(tool, args, concurrency=concurrency, ordered=ordered)
        return self._stream_of(_texts(outcomes))

    def _outcomes(
        self,
        tool: str | type | Tool | ToolFunction,
        args: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
        *,
        concurrency: int,
        ordered: bool,
    ) -> AsyncGenerator[ToolOutcome]:
        found = self._found(tool)
        if concurrency < 1:
            raise InvalidValueError(f"concurrency={concurrency} cannot be; give 1 or more.")

        async def call(own: Mapping[str, object]) -> ToolOutcome:
            return await self._outside.call_tool(found, _by_name(own))

        return mapped(call, args, concurrency=concurrency, ordered=ordered)

    # --- compression ---

    async def replace_history_with_tldr(
        self,
        strategy: HistoryCompression | None = None,
        *,
        preserve_memory: bool = True,
        retrieval_model: object = None,
    ) -> None:
        """Put summaries in the place of what was said; `compression.py` says what stays.

        When a request fails or is cancelled, the prompt stays as it was.

        Args:
            strategy: What is summarised, and how; `WholeHistory()` by default.
            preserve_memory: Whether messages that are marked as memory stay as they are.
            retrieval_model: Who writes the summaries; this session's model by default.

        Raises:
            InvalidValueError: The strategy is none, or returned something else than messages.
        """
        chosen = checked_strategy(strategy if strategy is not None else WholeHistory())
        messages = self.prompt.messages
        kept = tuple(m for m in messages if is_memory(m)) if preserve_memory else ()
        summarizer = self._summarizer(retrieval_model, memory=kept)
        shorter = await chosen.compress(messages, summarizer)
        if not isinstance(shorter, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(
                f"{type(chosen).__name__}.compress() returned {shorter!r}; return the messages that "
                "take the place of the history."
            )
        self._set_messages(shorter)

    def _found(self, tool: str | type | Tool | ToolFunction) -> Tool:
        self._require_open()
        return self._outside.tools.find(tool)

    def _recorded(self, reply: AssistantMessage) -> AssistantMessage:
        self.append_prompt(reply)
        return reply

    def _change(self, state: SessionState) -> None:
        self._current = state.after(self._state)


def _by_name(args: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        raise InvalidValueError(
            f"A tool's arguments are a mapping by parameter name, not of type {type(args).__name__}."
        )
    return args


async def _texts(outcomes: AsyncGenerator[ToolOutcome]) -> AsyncGenerator[str]:
    async with aclosing(outcomes):
        async for outcome in outcomes:
            yield outcome.text
