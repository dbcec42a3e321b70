"""The agent: a model, a system prompt, tools, a strategy and features, run again and again.

An `Agent` holds no conversation itself. Each `run` makes a context (`run.py`), lets the features prepare
it (`ChatMemory` loads the history), lets the strategy work, and lets the features finish (`ChatMemory`
stores what is new). Several runs may go on at once.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tenure.clock import SYSTEM_CLOCK, Clock
from tenure.errors import InvalidValueError, UsageError
from tenure.events import EventHandler, RunResult
from tenure.feature import Feature, in_order
from tenure.features.chat_memory import ChatMemory
from tenure.features.default_conversation import DefaultConversation, default_session_id
from tenure.features.recall import LongTermMemory
from tenure.llm import LONG_WRITE_SESSION_S
from tenure.memory import Owner
from tenure.messages import Message, SystemMessage, Text
from tenure.models import Model, resolve_model
from tenure.prompt import LLMParams, Prompt
from tenure.run import RunContext, Strategy
from tenure.run_life import performed
from tenure.run_stream import RunStream
from tenure.stores import Store, default_store_path, open_store, url_of
from tenure.stores.checks import checked_session_id
from tenure.stores.leases import OnBusy
from tenure.stores.memory_checks import checked_owner
from tenure.strategy import tool_loop
from tenure.structured import OutputSchema
from tenure.tools import Tool, ToolFunction, ToolRegistry
from tenure.triggers import CompressionRule

if TYPE_CHECKING:
    from tenure.embedding import EmbedderSpec
    from tenure.memories import Memories

S = TypeVar("S")  # what a strategy may be
F = TypeVar("F", bound=Feature)

DEFAULT_WINDOW = 50
"""Messages of history that an agent with memory and no ChatMemory of its own shows its model."""

SYSTEM_PROMPT_ID = "system-prompt"
"""The id of every agent's own system prompt, which no history holds."""


class AgentBase(ABC, Generic[S]):
    """What `tenure.Agent` and `tenure.sync.Agent` share: everything but how their calls wait."""

    def __init__(
        self,
        *,
        model: object,
        system_prompt: str | None = None,
        prompt: Prompt | Sequence[Message] | None = None,
        tools: Iterable[Tool | ToolFunction] = (),
        strategy: S | None = None,
        features: Iterable[Feature] = (),
        name: str = "agent",
        user_id: str | None = None,
        store: Store | str | None = None,
        memory: bool = False,
        embedder: EmbedderSpec = "auto",
        params: LLMParams | None = None,
        output_type: object = str,
        compression: CompressionRule | None = None,
        max_iterations: int = 50,
        on_busy: OnBusy = "queue",
        long_write_session_s: float | None = LONG_WRITE_SESSION_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Put an agent together. Nothing is opened or asked yet.

        Args:
            model: `"local"`, `"provider:name"`, a pydantic-ai model, or a `Model`.
            system_prompt: Sent first with every request, as it is in the code now; never stored.
            prompt: Messages to begin every conversation with, such as examples. They are stored with
                a conversation's first run and never again.
            tools: Functions or `@tool`s that the model may call.
            strategy: What a run does: an async function of the context and the text (for
                `tenure.sync.Agent` also a plain one). The default is `tool_loop`, which asks the
                model and runs tools until it answers.
            features: What else a run has, such as `ChatMemory`.
            name: The same name finds the same memories and the same default conversation again.
            user_id: Whom this agent serves, when it serves one of several: memories and the default
                conversation are this user's alone. Make an agent for each user; that costs little.
            store: Where features without a store of their own keep things: a URL or a `Store`. If
                not given, `TENURE_STORE`; with `memory` or `ask`, else the command line's file.
            memory: Whether to have long-term memories, which runs recall and add to by themselves
                (`LongTermMemory`), and a `ChatMemory` on the store with a window of 50 messages;
                of either, what is in `features` takes the place.
            embedder: What these memories are embedded with; see `Memories.open`.
            params: Settings of every request; those of `prompt` win over them.
            output_type: What the default strategy makes of the last reply: its text, or a value of
                this type (any that pydantic knows, or a JSON schema).
            compression: When the default strategy compresses the history: `compress_when(...)`.
            max_iterations: The most model calls in one run.
            on_busy: What a run does while another one uses its conversation: wait in line, or raise
                `ConversationBusyError`.
            long_write_session_s: After how many seconds an open LLM write session is warned of in
                the log; None for never.
            clock: Where times and ids come from.

        Raises:
            UsageError: A name, a model, a tool or a number is wrong; the text says which.
        """
        if max_iterations < 1:
            raise InvalidValueError(f"max_iterations={max_iterations!r} must be at least 1.")
        if on_busy not in ("queue", "reject"):
            raise InvalidValueError(f"on_busy={on_busy!r} must be 'queue' or 'reject'.")
        if not name:
            raise InvalidValueError("The agent's name is empty; leave it out or give one.")
        self.name = name
        self._owner = checked_owner(Owner(agent_id=name, user_id=user_id))
        self.model: Model = resolve_model(model)
        self.tools = ToolRegistry(tools)
        self._system_prompt = own_system_prompt(system_prompt)
        self._prompt = _initial_prompt(prompt, params, self._system_prompt)
        self._strategy = tool_loop if strategy is None else self._async_strategy(strategy)
        self._output_schema = OutputSchema[object](output_type) if output_type is not str else None
        if not isinstance(compression, CompressionRule | NoneType):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"compression={compression!r} is no rule; give compress_when(messages=...)."
            )
        self._compression = compression
        self._long_write_session_s = long_write_session_s
        self._max_iterations = max_iterations
        self._on_busy: OnBusy = on_busy
        self._clock = clock
        self._store_or_url = store if store is not None else os.environ.get("TENURE_STORE")
        if self._store_or_url is None and memory:
            self._store_or_url = url_of(default_store_path())
        self._features: list[Feature] = []
        self._handlers: list[EventHandler] = []
        self._ask_memory: ChatMemory | None = None
        for feature in features:
            self.install(feature)
        if memory and not self._installed(ChatMemory):
            self.install(ChatMemory(self.store).window_size(DEFAULT_WINDOW))
        if memory and not self._installed(LongTermMemory):
            self.install(LongTermMemory(embedder=embedder))

    def install(self, feature: Feature) -> Self:
        """Add a feature, as if it had been listed; returns the agent. Runs under way do not get it.

        Raises:
            InvalidValueError: The agent has a feature of this class already, or this is none, or it
                brings a tool of a name that another tool has.
        """
        if not isinstance(feature, Feature):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(
                f"{feature!r} is no feature; give an object such as ChatMemory()."
            )
        if any(type(other) is type(feature) for other in self._features):
            raise InvalidValueError(
                f"The agent {self.name!r} has a {type(feature).__name__} already; give it only one."
            )
        tools = ToolRegistry([*self.tools.values(), *feature.tools])
        feature.on_install(self.store if self._store_or_url is not None else None, self._owner)
        self.tools = tools
        self._features = in_order([*self._features, feature])
        for each in self._features:
            each.beside(self._features)
        if isinstance(feature, LongTermMemory) and feature.memories.owner == self._owner:
            context = DefaultConversation(self._owner, self._default_chat_memory)
            feature.memories.context = context
        return self

    def on_event(self, handler: EventHandler) -> EventHandler:
        """Have a function, sync or async, sent every event of every run; usable as a decorator.

        What it raises fails the run.
        """
        self._handlers.append(handler)
        return handler

    @cached_property
    def store(self) -> Store:
        """The agent's store: `store=`, else `TENURE_STORE`, else the file of the command line."""
        chosen = self._store_or_url
        if isinstance(chosen, Store):
            return chosen
        return open_store(chosen if chosen is not None else url_of(default_store_path()))

    @property
    def _own_memories(self) -> Memories:
        feature = self._installed(LongTermMemory)
        if feature is None:
            raise UsageError(
                f"The memory of the agent {self.name!r} is not enabled; make it with memory=True."
            )
        return feature.memories

    @abstractmethod
    def _async_strategy(self, strategy: S) -> Strategy:
        """A strategy as the run calls it."""

    async def _ask(self, text: str) -> str:
        features, memory = self._features, self._default_chat_memory()
        if memory not in features:
            features = in_order([*features, memory])
        result = await self._run(text, default_session_id(self._owner), features=features)
        return str(result)

    def _installed(self, kind: type[F]) -> F | None:
        return next((feature for feature in self._features if isinstance(feature, kind)), None)

    def _default_chat_memory(self) -> ChatMemory:
        """Where the agent's default conversation is."""
        if (installed := self._installed(ChatMemory)) is not None:
            return installed
        if self._ask_memory is None:
            self._ask_memory = ChatMemory(self.store).window_size(DEFAULT_WINDOW)
        return self._ask_memory

    def _stream(self, text: str, session_id: str | None) -> RunStream:
        return RunStream(lambda handler: self._run(text, session_id, streaming_to=handler))

    async def _run(
        self,
        text: str,
        session_id: str | None,
        *,
        features: Sequence[Feature] | None = None,
        streaming_to: EventHandler | None = None,
    ) -> RunResult:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(f"The input is a text, not a {type(text).__name__}.")
        if session_id is not None:
            checked_session_id(session_id)
        features = tuple(self._features if features is None else features)
        handlers = [*self._handlers, *([streaming_to] if streaming_to is not None else [])]
        is_follow_up = False
        while True:
            ctx = RunContext(
                session_id=session_id,
                text=text,
                owner=self._owner,
                model=self.model,
                prompt=self._prompt,
                system_prompt=self._system_prompt,
                tools=self.tools,
                strategy=self._strategy,
                features=features,
                handlers=handlers,
                max_iterations=self._max_iterations,
                is_streaming=streaming_to is not None,
                on_busy=self._on_busy,
                output_schema=self._output_schema,
                compression=self._compression,
                long_write_session_s=self._long_write_session_s,
                clock=self._clock,
            )
            ctx.is_follow_up = is_follow_up
            result = await performed(ctx)
            if ctx.follow_up is None:
                return result
            is_follow_up = True


class Agent(AgentBase[Strategy]):
    """Answers, with tools and memory."""

    def _async_strategy(self, strategy: Strategy) -> Strategy:
        return strategy

    @property
    def memory(self) -> Memories:
        """The agent's long-term memories; an agent of the same name finds them again.

        Raises:
            UsageError: The agent has no memory: neither `memory=True` nor a `LongTermMemory`.
        """
        return self._own_memories

    async def run(self, text: str, session_id: str | None = None) -> RunResult:
        """Answer one input.

        The run is atomic: history is loaded before it, and its new messages are stored once, after
        it has succeeded. A run that fails or is cancelled stores nothing.

        Args:
            text: What the user says; may be empty.
            session_id: The conversation. Without one the run has no history and is not stored.

        Raises:
            InvalidValueError: The text or the session id is none.
            ModelError: The model could not answer.
            StructuredOutputError: The answer is not of the agent's `output_type`.
            IterationLimitError: It took more than `max_iterations` model calls.
            ConversationBusyError: Another run uses the conversation, and `on_busy` is `"reject"`.
            HistoryNotStoredError: The answer could not be stored; it is the error's `result`.
            Exception: Whatever a strategy, a hook or a handler raised.
        """
        return await self._run(text, session_id)

    async def ask(self, text: str) -> str:
        """Answer one input in the agent's own default conversation, and return the text.

        The conversation is kept in the agent's `ChatMemory`, or else in its store; an agent of the
        same name finds it again after a restart. Raises what `run` raises.
        """
        return await self._ask(text)

    def run_stream(self, text: str, session_id: str | None = None) -> RunStream:
        """Answer one input, event by event; `run` says the rest.

        The run starts with the first event that is awaited. Stopping early cancels it, and then
        nothing of it is stored.
        """
        return self._stream(text, session_id)


def own_system_prompt(text: str | None) -> SystemMessage | None:
    """The message that an agent with this system prompt sends first."""
    if text is None:
        return None
    # Its time is the earliest there is: it was there before anything was said.
    first = datetime.min.replace(tzinfo=UTC)
    return SystemMessage(parts=(Text(text=text),), id=SYSTEM_PROMPT_ID, created_at=first)


def _initial_prompt(
    given: Prompt | Sequence[Message] | None,
    params: LLMParams | None,
    system_prompt: SystemMessage | None,
) -> Prompt:
    prompt = given if isinstance(given, Prompt) else Prompt(messages=tuple(given or ()))
    own = (system_prompt,) if system_prompt is not None else ()
    return prompt.copy(
        messages=(*own, *prompt.messages), params=prompt.params.with_defaults(params or LLMParams())
    )
