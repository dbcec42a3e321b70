"""Models of other companies and servers, by way of pydantic-ai.

`ProviderModel` is our `Model` protocol on top of `pydantic_ai.direct`; how messages become the ones
of pydantic-ai is in `translation.py`. Before a request goes out, pydantic-ai fits it to the model (a
system message in mid-conversation becomes marked user text where the API has no such thing), as it
does for its own agents. Nothing imports pydantic-ai before a model is resolved.

HTTP connections belong to the event loop that opened them. A model given by name has one client for
each loop, so it may be used in several loops, one after the other or in threads at once;
`connections.py` says when they are closed.
"""

from __future__ import annotations

import re
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from pydantic_ai import direct
from pydantic_ai import messages as pai
from pydantic_ai.exceptions import AgentRunError, ModelHTTPError, UserError
from pydantic_ai.models import Model as PydanticModel
from pydantic_ai.models import infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class

from tenure.connections import Connections
from tenure.errors import (
    MissingExtraError,
    ModelRequestError,
    UnknownModelError,
    UsageError,
)
from tenure.messages import Opaque, Part, Text, ToolCall, ToolResult
from tenure.models import (
    ModelProfile,
    PartEnd,
    ReasoningDelta,
    StreamEnd,
    StreamFrame,
    TextDelta,
    ToolCallDelta,
    checked_reply,
)
from tenure.translation import (
    args_text,
    model_messages,
    parameters_of,
    part_of,
    reply_of,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping

    from pydantic_ai.models import StreamedResponse

    from tenure.messages import AssistantMessage
    from tenure.models import ModelRequest

_EXTRAS = frozenset({"openai", "anthropic", "google", "groq", "mistral", "bedrock"})
_EXTRA_NAMED = re.compile(r"pydantic-ai-slim\[([a-z0-9_-]+)\]")
# Of what a provider says in an error; a guess at what still reads as a sentence.
_REASON_CHARS = 200
# What a provider says is not repeated when it holds a whole text of the prompt, from the first length
# on, or any piece of the second; guesses between a leak and a needless silence.
_WHOLE_CHARS = 4
_ECHO_CHARS = 20
_SEE_CAUSE = "see the error that caused this one"
ADVICE = {
    401: "check the API key",
    403: "check the API key and what it may use",
    404: "check the model's name",
    413: "send less",
    429: "wait, or raise your quota",
}
"""What helps against an HTTP status."""


class ProviderModel:
    """A model behind pydantic-ai. Safe in any number of tasks; for loops see the module.

    A pydantic-ai model *object* has one HTTP client: use it in one running loop at a time.
    """

    def __init__(self, model: str | PydanticModel) -> None:
        """Find the model; nothing is sent yet.

        Args:
            model: `"provider:name"` as pydantic-ai knows it, or a model object of its.

        Raises:
            UnknownModelError: No provider of this name, or no name behind it.
            MissingExtraError: The provider's package is not installed; the text has the command.
            UsageError: The provider needs a setting, such as an API key.
        """
        self._spec = model
        self._model = _inferred(model) if isinstance(model, str) else model
        another = partial(_inferred, model) if isinstance(model, str) else None
        self._connections = Connections(self._model, another)

    @property
    def name(self) -> str:
        """The name that was given, or the one that the object goes by."""
        return self._spec if isinstance(self._spec, str) else self._model.model_name

    @property
    def profile(self) -> ModelProfile:
        """What pydantic-ai knows of the model, and for the rest the defaults of `ModelProfile`."""
        try:
            known = self._model.profile
        except NotImplementedError:  # several models behind one another have none in common
            return ModelProfile()
        default = ModelProfile()
        return ModelProfile(
            context_window=known.get("context_window"),
            has_native_schema=known.get("supports_json_schema_output", default.has_native_schema),
            can_force_tools=known.get("supports_forced_tool_choice", default.can_force_tools),
            has_tools=known.get("supports_tools", default.has_tools),
            has_images=known.get("supports_image_input", default.has_images),
        )

    def __repr__(self) -> str:
        return f"ProviderModel({self.name!r})"

    async def respond(self, request: ModelRequest) -> AssistantMessage:
        """Answer with the whole reply. See `Model.respond`.

        Raises:
            UsageError: The model cannot do what is asked of it, such as calling a tool by force.
            ModelRequestError: The request failed, or the answer makes no sense.
            EmptyReplyError: The model answered with nothing.
        """
        settings, parameters = settings_of(request), parameters_of(request)
        messages = model_messages(request.messages)
        with _our_errors(self.name, request):
            model = await self._connections.model()
            response = await direct.model_request(
                model,
                model.prepare_messages(messages, parameters),
                model_settings=settings,
                model_request_parameters=parameters,
            )
        return checked_reply(reply_of(response))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        """Answer frame by frame. See `Model.stream`; raises what `respond` raises.

        Arguments that a provider sends as an object, not as text, are only in `PartEnd`.
        """
        settings, parameters = settings_of(request), parameters_of(request)
        messages = model_messages(request.messages)
        with _our_errors(self.name, request):
            model = await self._connections.model()
            async with direct.model_request_stream(
                model,
                model.prepare_messages(messages, parameters),
                model_settings=settings,
                model_request_parameters=parameters,
            ) as response:
                async with aclosing(_frames(response)) as frames:
                    async for frame in frames:
                        yield frame
                reply = response.get()
        yield StreamEnd(message=checked_reply(reply_of(reply)))


def _inferred(name: str) -> PydanticModel:
    """The pydantic-ai model of this name, or an error of ours."""
    provider, model_name = parse_model_id(name)
    if provider is not None and not model_name:
        raise UnknownModelError(f"There is no model {name!r}; put its name behind the colon.")
    with naming_errors(name, "model"):
        return infer_model(name)


@contextmanager
def naming_errors(name: str, what: str) -> Generator[None]:
    """Turn what pydantic-ai raises of the name of a model or an embedder into our errors."""
    provider, _ = parse_model_id(name)
    try:
        yield
    except ImportError as exc:
        named = _EXTRA_NAMED.search(str(exc))
        extra = named[1] if named else str(provider)
        package = f"tenure[{extra}]" if extra in _EXTRAS else f"pydantic-ai-slim[{extra}]"
        raise MissingExtraError(
            f"The {what} {name!r} needs a package that is not installed; run: "
            f'pip install "{package}"'
        ) from exc
    except (UserError, ValueError) as exc:
        if provider is None or not _is_provider(provider):
            _, _, suggestion = str(exc).partition("Did you mean ")
            unknown = f"no provider is named {provider!r}; write for instance 'openai:gpt-5-mini'."
            advice = f"did you mean {suggestion}" if suggestion else unknown
            raise UnknownModelError(f"There is no {what} {name!r}; {advice}") from exc
        raise UsageError(
            f"The {what} {name!r} cannot be used yet: {_first_sentence(str(exc))}."
        ) from exc


def _is_provider(name: str) -> bool:
    try:
        infer_provider_class(name)
    except ValueError:
        return False
    return True


# --- the stream ----------------------------------------------------------------------------------


async def _frames(response: StreamedResponse) -> AsyncGenerator[StreamFrame]:
    """The frames of a stream but for the last; parts of kinds that we lack have only their end."""
    opaque: set[int] = set()
    async for event in response:
        match event:
            case pai.PartStartEvent(index=index, part=part):
                match part:
                    case pai.TextPart():
                        if part.content:
                            yield TextDelta(index=index, text=part.content)
                    case pai.ThinkingPart():
                        if part.content:
                            yield ReasoningDelta(index=index, text=part.content)
                    case pai.ToolCallPart():
                        args = "" if part.args is None else args_text(part.args)
                        yield ToolCallDelta(
                            index=index, id=part.tool_call_id, name=part.tool_name, args=args
                        )
                    case pai.NativeToolCallPart():
                        opaque.add(index)
                    case _:  # pydantic-ai sends these whole, and no end event for them
                        opaque.add(index)
                        yield PartEnd(index=index, part=part_of(part))
            case pai.PartDeltaEvent(index=index, delta=delta) if index not in opaque:
                frame = _delta(index, delta)
                if frame is not None:
                    yield frame
            case pai.PartEndEvent(index=index, part=part):
                yield PartEnd(index=index, part=part_of(part))
            case _:
                pass


def _delta(index: int, delta: pai.ModelResponsePartDelta) -> StreamFrame | None:
    match delta:
        case pai.TextPartDelta(content_delta=text) if text:
            return TextDelta(index=index, text=text)
        case pai.ThinkingPartDelta(content_delta=text) if text:
            return ReasoningDelta(index=index, text=text)
        case pai.ToolCallPartDelta():
            args = delta.args_delta if isinstance(delta.args_delta, str) else ""
            name = delta.tool_name_delta or ""
            if args or name:
                return ToolCallDelta(index=index, id=delta.tool_call_id, name=name, args=args)
            return None
        case _:
            return None


# --- errors --------------------------------------------------------------------------------------


@contextmanager
def _our_errors(name: str, request: ModelRequest) -> Generator[None]:
    """Turn what a provider's SDK and pydantic-ai raise into our errors; cancellation passes."""
    try:
        yield
    except UserError as exc:
        reason = _quotable(exc.message, request) or _SEE_CAUSE
        raise UsageError(f"The model {name!r} cannot be asked this: {reason}.") from exc
    except Exception as exc:  # each SDK has its own; what it was is in the cause
        failure = _last_of(exc)
        if isinstance(failure, ModelHTTPError):
            text = _http_failure(name, failure, request)
            raise ModelRequestError(text, status_code=failure.status_code) from exc
        reason = type(failure).__name__
        if isinstance(failure, AgentRunError):
            reason = _quotable(failure.message, request) or reason
        elif isinstance(failure, NotImplementedError):
            reason = _quotable(str(failure), request) or reason
        raise ModelRequestError(
            f"The request to the model {name!r} failed: {reason}; try again, or {_SEE_CAUSE}."
        ) from exc


def _last_of(exc: Exception) -> Exception:
    """The exception itself, or the last of a group: what the last of several models ran into."""
    while isinstance(exc, ExceptionGroup):
        exc = cast("ExceptionGroup[Exception]", exc).exceptions[-1]
    return exc


def _http_failure(name: str, exc: ModelHTTPError, request: ModelRequest) -> str:
    status = exc.status_code
    # What a provider says of a key may hold the key.
    said = "" if status in (401, 403) else _quotable(_said(exc.body), request)
    advice = ADVICE.get(status, "try again later" if status >= 500 else "change the request")
    if exc.suggested_model_id is not None:
        advice = f"did you mean {exc.suggested_model_id!r}?"
    return (
        f"The model {name!r} answered with HTTP {status}{f' ({said})' if said else ''}; {advice}."
    )


def _said(body: object) -> str:
    """The sentence in the body of an HTTP error, whatever the provider's shape of it."""
    while isinstance(body, dict):
        fields = cast("Mapping[str, object]", body)
        body = next((fields[key] for key in ("error", "message", "detail") if fields.get(key)), "")
    return body if isinstance(body, str) else ""


def _quotable(text: str, request: ModelRequest) -> str:
    """A provider's words, in one short line; nothing when they repeat the prompt."""
    line = _first_sentence(" ".join(text.split()))[:_REASON_CHARS]
    texts = list(_texts(part for message in request.messages for part in message.parts))
    if any(len(text) >= _WHOLE_CHARS and text in line for text in texts):
        return ""
    pieces = (line[i : i + _ECHO_CHARS] for i in range(len(line) - _ECHO_CHARS + 1))
    prompt = "\n".join(texts)
    return "" if any(piece in prompt for piece in pieces) else line


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _texts(parts: Iterable[Part | Opaque]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, ToolCall):
            yield part.args
        elif isinstance(part, ToolResult):
            yield from _texts(part.parts)
