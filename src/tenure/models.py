"""What a model is: the protocol, its request and what it streams.

A `Model` answers a `ModelRequest` with one `AssistantMessage`, whole (`respond`) or frame by frame
(`stream`). Anything with these methods is a model. `resolve_model` turns what users write into one:
`"local"` is the bundled offline model (`local.py`), `"provider:name"` and any pydantic-ai model object go
through `providers.py`, and an object with our protocol is taken as it is.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast, runtime_checkable

from tenure.errors import EmptyReplyError, UnknownModelError
from tenure.messages import AssistantMessage, Json, Message, Part, Text
from tenure.prompt import LLMParams
from tenure.tools import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What a model can do.

    Args:
        context_window: The most tokens of a request and its reply together; None when unknown.
        has_native_schema: Whether it can be held to a JSON schema by the provider.
        can_force_tools: Whether it can be made to call a tool.
        has_tools: Whether it can call tools at all.
        has_images: Whether it can be shown images.
    """

    context_window: int | None = None
    has_native_schema: bool = False
    can_force_tools: bool = True
    has_tools: bool = True
    has_images: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request, whole: everything that a model is to know.

    Args:
        messages: A valid view (see `views.py`), in order; the system prompt, if any, first.
        tools: What it may call.
        params: Settings, the tool choice among them.
        output_schema: The JSON schema that the reply's text must follow, or None.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    params: LLMParams = field(default_factory=LLMParams)
    output_schema: Mapping[str, Json] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "tools", tuple(self.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of a text. `index` says which part of the reply it belongs to."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    """More of a reasoning. `index` says which part of the reply it belongs to."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """More of a tool call: whatever of it is new.

    Args:
        index: Which part of the reply it belongs to.
        id: The call's id, once it is known.
        name: More of the tool's name.
        args: More of the arguments' JSON text.
    """

    index: int
    id: str | None = None
    name: str = ""
    args: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnd:
    """A part of the reply, complete. Comes after its deltas."""

    index: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The whole reply, with usage and finish reason. The last frame of a stream that ended normally."""

    message: AssistantMessage


StreamFrame: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | PartEnd | StreamEnd


@runtime_checkable
class Model(Protocol):
    """Something that answers."""

    @property
    def profile(self) -> ModelProfile:
        """What it can do."""
        ...

    async def respond(self, request: ModelRequest) -> AssistantMessage:
        """Answer with the whole reply.

        Raises:
            ModelError: It could not.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamFrame]:
        """Answer frame by frame; the last frame is a `StreamEnd` with the same reply that `respond`
        would have given. Nothing is asked before the first frame is awaited; closing the iterator
        early ends the request.

        Raises:
            ModelError: While iterating: it could not answer, or broke off.
        """
        ...


def resolve_model(model: object) -> Model:
    """Return the model that a user's value stands for.

    Args:
        model: `"local"`, `"provider:name"`, a pydantic-ai model, or a `Model`.

    Raises:
        UnknownModelError: Nothing answers to this name, or the object is no model.
        MissingExtraError: The provider's package is not installed; the text has the command.
        UsageError: The provider needs a setting, such as an API key.
    """
    if isinstance(model, str):
        if model == "local":
            from tenure.local import LocalModel

            return LocalModel()
        if ":" not in model:
            raise UnknownModelError(
                f"There is no model {model!r}; write 'local', or 'provider:name' such as "
                "'openai:gpt-5-mini'."
            )
        from tenure.providers import ProviderModel

        return ProviderModel(model)
    if isinstance(model, Model):
        return model
    if "pydantic_ai.models" in sys.modules:  # whoever has a model of that library has imported it
        from pydantic_ai.models import Model as LibraryModel

        if isinstance(model, LibraryModel):
            from tenure.providers import ProviderModel

            return ProviderModel(cast("LibraryModel[object]", model))
    raise UnknownModelError(
        f"An object of type {type(model).__name__} is no model; give 'local', 'provider:name', a "
        "pydantic-ai model, or an object with respond(), stream() and profile."
    )


def checked_reply(message: AssistantMessage) -> AssistantMessage:
    """Return a reply that says something.

    Raises:
        EmptyReplyError: It has no part, or nothing but empty texts.
    """
    if any(not isinstance(part, Text) or part.text for part in message.parts):
        return message
    named = f" {message.model!r}" if message.model else ""
    why = f" (finish reason {message.finish_reason!r})" if message.finish_reason else ""
    raise EmptyReplyError(
        f"The model{named} answered with nothing{why}; ask again, or raise "
        "max_tokens if the reason is 'length'."
    )
