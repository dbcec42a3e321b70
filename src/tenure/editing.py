"""Editing what a model is asked: the part of a write session that changes its prompt, tools and model.

None of these methods asks a model or waits for anything; each replaces the session's `SessionState`, a
value. What a session has changed reaches its context when its block ends normally. Whatever the history
looks like afterwards, requests send a valid view of it (`views.py`), with the agent's own system prompt
first: to remove that message from the prompt removes it from no request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.clock import in_utc
from tenure.errors import InvalidValueError
from tenure.messages import AssistantMessage, Message, SystemMessage
from tenure.models import Model, resolve_model
from tenure.prompt import LLMParams, NamedTool, Prompt, ToolChoice
from tenure.tools import Tool, ToolFunction, ToolRegistry, ToolSpec
from tenure.windows import selection


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What a session reads, and what a write session commits.

    Args:
        prompt: The messages, and how they are sent.
        tools: What the model is offered.
        model: Who is asked.
        dropped: What sessions have taken out of the prompt so far, in order.
    """

    prompt: Prompt
    tools: tuple[ToolSpec, ...]
    model: Model
    dropped: tuple[Message, ...] = ()

    def after(self, earlier: SessionState) -> SessionState:
        """Return this state as one that comes after another: it knows what has been dropped since."""
        before, now = earlier.prompt.messages, self.prompt.messages
        if now[: len(before)] == before:  # compares objects that are the same by that: costs little
            return self
        left = {message.id for message in now}
        gone = tuple(message for message in before if message.id not in left)
        return replace(self, dropped=(*earlier.dropped, *gone))


class Reading(ABC):
    """What every LLM session can look at. Raises `SessionClosedError` once its block has ended."""

    @property
    @abstractmethod
    def _state(self) -> SessionState:
        """The present state, while the session is open."""

    @property
    def prompt(self) -> Prompt:
        """The prompt of this session."""
        return self._state.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the model is offered."""
        return self._state.tools

    @property
    def model(self) -> Model:
        """The model that is asked."""
        return self._state.model


class Editing(Reading):
    """What a write session can change. Raises `SessionClosedError` once its block has ended.

    The methods that cut the history take two options: `preserve_system_messages` keeps system messages
    in their places, and `keep_pairs` keeps each turn together with the results of its calls: where the cut
    goes between them, all of them go.
    """

    @abstractmethod
    def _change(self, state: SessionState) -> None:
        """Go on with another state."""

    # --- the prompt ---

    @property
    def prompt(self) -> Prompt:
        """The prompt of this session; may be set to another."""
        return self._state.prompt

    @prompt.setter
    def prompt(self, prompt: Prompt) -> None:
        if not isinstance(prompt, Prompt):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
            raise InvalidValueError(
                f"{type(prompt).__name__} is no Prompt; use session.prompt.copy(messages=...)."
            )
        self._change(replace(self._state, prompt=prompt))

    def append_prompt(self, *messages: Message, strict: bool = True) -> None:
        """Append messages, each tool result behind its call; see `Prompt.appended`.

        Raises:
            PromptError: A tool result has no call, or the call has a result already.
        """
        self.prompt = self.prompt.appended(*messages, strict=strict)

    def rewrite_prompt(self, rewrite: Callable[[Prompt], Prompt]) -> None:
        """Put what a function makes of the prompt in its place."""
        self.prompt = rewrite(self.prompt)

    def clear_history(self) -> None:
        """Remove every message, system messages too; id and params stay."""
        self._set_messages(())

    def leave_last_n_messages(
        self, n: int, *, preserve_system_messages: bool = True, keep_pairs: bool = True
    ) -> None:
        """Keep the last `n` messages; all of them when there are fewer.

        With the options on it may be more (system messages) or fewer (results whose call is cut off).

        Raises:
            InvalidValueError: `n` is negative.
        """
        total = len(self.prompt.messages)
        kept = set(range(total - min(_count(n), total), total))
        self._keep(kept, systems=preserve_system_messages, pairs=keep_pairs)

    def drop_last_n_messages(
        self, n: int, *, preserve_system_messages: bool = True, keep_pairs: bool = True
    ) -> None:
        """Remove the last `n` messages; all of them when there are fewer.

        Raises:
            InvalidValueError: `n` is negative.
        """
        kept = set(range(len(self.prompt.messages) - _count(n)))
        self._keep(kept, systems=preserve_system_messages, pairs=keep_pairs)

    def leave_messages_from(
        self, moment: datetime, *, preserve_system_messages: bool = True, keep_pairs: bool = True
    ) -> None:
        """Keep the messages made at `moment` or later, wherever they stand.

        Raises:
            InvalidValueError: `moment` has no time zone.
        """
        moment = in_utc(moment)
        messages = self.prompt.messages
        kept = {index for index, message in enumerate(messages) if message.created_at >= moment}
        self._keep(kept, systems=preserve_system_messages, pairs=keep_pairs)

    def drop_trailing_tool_calls(self) -> None:
        """Remove the turns with tool calls that the history ends with, their words too."""
        messages = [*self.prompt.messages]
        while messages and isinstance(messages[-1], AssistantMessage) and messages[-1].is_tool_call:
            messages.pop()
        self._set_messages(messages)

    def _keep(self, kept: Set[int], *, systems: bool, pairs: bool) -> None:
        messages = self.prompt.messages
        if systems:
            kept = kept | {i for i, m in enumerate(messages) if isinstance(m, SystemMessage)}
        if pairs:
            self._set_messages(selection(messages, kept))
        else:
            self._set_messages(m for i, m in enumerate(messages) if i in kept)

    def _set_messages(self, messages: Iterable[Message]) -> None:
        self.prompt = self.prompt.copy(messages=messages)

    # --- the rest ---

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the model is offered; may be set to other tools. What can be run stays the same."""
        return self._state.tools

    @tools.setter
    def tools(self, tools: Iterable[ToolSpec | Tool | ToolFunction]) -> None:
        specs = tuple(t if isinstance(t, ToolSpec) else ToolRegistry([t]).specs[0] for t in tools)
        if len({spec.name for spec in specs}) < len(specs):
            raise InvalidValueError("Two of these tools have one name; offer each tool once.")
        self._change(replace(self._state, tools=specs))

    @property
    def model(self) -> Model:
        """The model that is asked; may be set to another, which `change_model` does, too."""
        return self._state.model

    @model.setter
    def model(self, model: object) -> None:
        self.change_model(model)

    def change_model(self, model: object) -> None:
        """Ask another model from now on: anything that `Agent(model=...)` takes.

        Raises:
            UnknownModelError: It is none; see `resolve_model` for the rest.
        """
        state = self._state
        self._change(replace(state, model=resolve_model(model)))

    def change_params(self, params: LLMParams) -> None:
        """Use other params from now on; they replace all the old ones."""
        if not isinstance(params, LLMParams):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"{params!r} are no params; give LLMParams(temperature=..., max_tokens=...)."
            )
        self.prompt = self.prompt.copy(params=params)

    def set_tool_choice(self, choice: ToolChoice) -> None:
        """Say from now on whether the model may, must or must not call a tool.

        Raises:
            InvalidValueError: It is no such choice.
        """
        if not isinstance(choice, NamedTool) and choice not in ("auto", "none", "required"):  # pyright: ignore[reportUnnecessaryContains] # users err
            raise InvalidValueError(
                f"{choice!r} is no tool choice; give 'auto', 'none', 'required' or NamedTool(name)."
            )
        self.change_params(replace(self.prompt.params, tool_choice=choice))

    def unset_tool_choice(self) -> None:
        """Leave it to the provider again whether the model may call a tool."""
        self.change_params(replace(self.prompt.params, tool_choice=None))


def _count(n: int) -> int:
    if not isinstance(n, int) or n < 0:  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        raise InvalidValueError(f"{n} messages cannot be; give 0 or more.")
    return n
