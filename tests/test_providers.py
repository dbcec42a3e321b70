"""The pydantic-ai backed model: translation, wire format, streams, errors and event loops."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import openai_server as wire
import pytest
from pydantic_ai import messages as pai
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from tenure import codec
from tenure.errors import (
    EmptyReplyError,
    MissingExtraError,
    ModelRequestError,
    UnknownModelError,
    UsageError,
)
from tenure.messages import (
    AssistantMessage,
    Media,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tenure.models import (
    Model,
    ModelProfile,
    ModelRequest,
    PartEnd,
    ReasoningDelta,
    StreamEnd,
    StreamFrame,
    TextDelta,
    ToolCallDelta,
    resolve_model,
)
from tenure.prompt import LLMParams, NamedTool
from tenure.providers import ProviderModel
from tenure.saying import assistant, system, tool_result, user
from tenure.tools import ToolSpec
from tenure.translation import content_of, media_of, model_messages, reply_of, response_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PNG = b"\x89PNG\r\n\x00\xff"
NO_RETRIES = LLMParams(additional={"max_retries": 0})
WEATHER = ToolSpec(
    name="weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="clock", description="The time.", parameters={"type": "object"})


@pytest.fixture
def anyio_backend() -> str:
    """The library is for asyncio."""
    return "asyncio"


def chat_model(server: wire.OpenAIServer, **settings: Any) -> OpenAIChatModel:
    """A pydantic-ai model object that the loopback server answers for."""
    provider = OpenAIProvider(base_url=server.url, api_key="sk-secret-of-mine")
    return OpenAIChatModel("gpt-4.1", provider=provider, settings={**settings})  # type: ignore[typeddict-item]


def asked(*messages: Message, **fields: Any) -> ModelRequest:
    """A request that the SDK does not repeat by itself."""
    return ModelRequest(messages=messages or (user("Hello"),), **{"params": NO_RETRIES, **fields})


async def frames_of(model: Model, request: ModelRequest) -> list[StreamFrame]:
    """All frames of a stream."""
    return [frame async for frame in model.stream(request)]


def stored(message: AssistantMessage) -> AssistantMessage:
    """The message after a trip through storage."""
    read = codec.from_json(codec.to_json(message))
    assert isinstance(read, AssistantMessage)
    assert read == message
    return read


def scripted(response: pai.ModelResponse) -> FunctionModel:
    """A pydantic-ai model with one answer."""
    return FunctionModel(lambda messages, info: response)


# --- translation ---------------------------------------------------------------------------------

CITED = pai.TextPart(
    "Paris [1]",
    id="msg_1",
    provider_name="openai",
    provider_details={
        "phase": "final",
        "logprobs": [{"token": "P", "logprob": -0.25}],
        "none": None,
    },
    citations=[
        pai.Citation(
            [pai.WebCitationSource("https://example.org", title="T", excerpts=["e"])],
            anchor=pai.MarkerCitationAnchor(start=6, end=9),
        )
    ],
)
PARTS: dict[str, pai.ModelResponsePart] = {
    "text": pai.TextPart("Hello\nworld"),
    "text with everything": CITED,
    "thinking with signature": pai.ThinkingPart(
        "Hmm",
        id="rs_1",
        signature="c2lnbmF0dXJl",
        provider_name="anthropic",
        provider_details={"summary": ["a", {"b": None}]},
    ),
    "redacted thinking": pai.ThinkingPart(
        "", id="redacted_thinking", signature="abc", provider_name="anthropic"
    ),
    "tool call": pai.ToolCallPart("weather", '{"city":  "Paris"}', "call_1"),
    "tool call with broken arguments": pai.ToolCallPart("weather", '{"city": ', "call_2"),
    "tool call with signature": pai.ToolCallPart(
        "weather",
        "{}",
        "call_3",
        id="fc_1",
        provider_name="google",
        provider_details={"thought_signature": "c2ln"},
    ),
    "file": pai.FilePart(
        pai.BinaryImage(PNG, media_type="image/png", identifier="cat", vendor_metadata={"d": 1}),
        id="ig_1",
        provider_name="openai",
        provider_details={"size": "1x1"},
    ),
    "native tool call": pai.NativeToolCallPart(
        "web_search",
        {"query": "tenure"},
        "srv_1",
        provider_name="anthropic",
        provider_details={"a": [1]},
    ),
    "native tool return": pai.NativeToolReturnPart(
        "web_search",
        [{"url": "https://example.org", "encrypted_content": "x"}],
        "srv_1",
        provider_name="anthropic",
        timestamp=datetime(2026, 1, 2, tzinfo=UTC),
    ),
    "compaction": pai.CompactionPart(
        None, id="cmp_1", provider_name="openai", provider_details={"encrypted_content": "x"}
    ),
    "speech": pai.SpeechPart(
        speaker="assistant",
        transcript="Hi",
        audio=pai.BinaryContent(b"\x00\x01\xff", media_type="audio/wav"),
    ),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_every_part_kind_survives_storage(part: pai.ModelResponsePart) -> None:
    """A reply's part comes back from storage as the very pydantic-ai part that it was."""
    response = pai.ModelResponse(parts=[part])
    assert list(response_of(stored(reply_of(response))).parts) == [part]


def test_a_whole_response_survives_storage() -> None:
    """Order, ids, usage, finish reason and the provider's own fields of a reply are all kept."""
    response = pai.ModelResponse(
        parts=list(PARTS.values()),
        usage=RequestUsage(
            input_tokens=100,
            output_tokens=20,
            cache_read_tokens=64,
            cache_write_tokens=8,
            output_reasoning_tokens=5,
            details={"accepted_prediction_tokens": 3},
        ),
        model_name="gpt-5-mini-2026",
        timestamp=datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC),
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
        provider_response_id="resp_1",
        provider_details={"finish_reason": "tool_calls", "service_tier": "flex"},
        canonical_system="openai",
        history_digest="abc",
        finish_reason="tool_call",
        state="interrupted",
    )
    message = stored(reply_of(response))
    assert response_of(message) == response
    assert message.usage == Usage(
        input_tokens=100,
        output_tokens=20,
        requests=1,
        details={
            "accepted_prediction_tokens": 3,
            "cache_read_tokens": 64,
            "cache_write_tokens": 8,
            "output_reasoning_tokens": 5,
        },
    )
    assert (message.model, message.finish_reason) == ("gpt-5-mini-2026", "tool_call")
    assert message.provider["provider_response_id"] == "resp_1"
    assert message.created_at == response.timestamp


def test_parts_become_what_they_are() -> None:
    """Each part of a reply gets our type, and what belongs to the provider is in `provider`."""
    message = reply_of(pai.ModelResponse(parts=list(PARTS.values())))
    kinds = [type(part) for part in message.parts]
    assert kinds == [Text] * 2 + [Reasoning] * 2 + [ToolCall] * 3 + [Media] + [Opaque] * 4
    thought = message.parts[2]
    assert isinstance(thought, Reasoning)
    assert thought.provider["signature"] == "c2lnbmF0dXJl"
    assert [part.kind for part in message.parts[-4:]] == [
        "pydantic_ai:builtin-tool-call",
        "pydantic_ai:builtin-tool-return",
        "pydantic_ai:compaction",
        "pydantic_ai:speech",
    ]
    assert message.tool_calls[0].args == '{"city":  "Paris"}'


@pytest.mark.parametrize(
    ("args", "text"),
    [({"a": 1, "ü": [None]}, '{"a":1,"ü":[null]}'), (None, "{}"), ("", ""), ("{ }", "{ }")],
)
def test_arguments_are_text(args: str | dict[str, Any] | None, text: str) -> None:
    """Arguments that come as an object are kept as JSON text, and text is kept as it came."""
    message = reply_of(pai.ModelResponse(parts=[pai.ToolCallPart("f", args, "c")]))
    assert message.tool_calls[0].args == text


def test_foreign_parts_are_left_out() -> None:
    """Opaque parts of another origin, and messages with nothing else in them, are not sent."""
    other = Opaque(kind="koog:thing", data={"a": 1})
    newer = Opaque(kind="pydantic_ai:hologram", data={"a": 1})
    sent = model_messages(
        [user("a"), AssistantMessage(parts=(other, newer)), assistant("b", other)]
    )
    assert [[part.part_kind for part in message.parts] for message in sent] == [
        ["user-prompt"],
        ["text"],
    ]


def test_provider_data_of_another_origin_does_no_harm() -> None:
    """A `provider` mapping that is not pydantic-ai's is left out, and the part is still sent."""
    odd = {"id": ["no"], "provider_details": 5, "seed": 1}
    message = AssistantMessage(
        parts=(Text(text="a", provider=odd), Reasoning(text="b", provider={"signature": {}})),
        finish_reason="exploded",
        provider={"state": "unheard-of"},
    )
    sent = response_of(message)
    assert list(sent.parts) == [pai.TextPart("a"), pai.ThinkingPart("b")]
    assert sent.finish_reason is None


MEDIA: dict[str, pai.MultiModalContent] = {
    "bytes": pai.BinaryContent.narrow_type(pai.BinaryContent(PNG, media_type="image/png")),
    "named bytes": pai.BinaryContent(b"%PDF", media_type="application/pdf", identifier="bill.pdf"),
    "image": pai.ImageUrl("https://e.org/a.png", vendor_metadata={"detail": "low"}),
    "audio": pai.AudioUrl("https://e.org/a.mp3"),
    "video": pai.VideoUrl("https://e.org/a.mp4", force_download=True),
    "document": pai.DocumentUrl("https://e.org/a.pdf", identifier="bill"),
    "a document that is an image": pai.DocumentUrl("https://e.org/x", media_type="image/png"),
    "uploaded": pai.UploadedFile("file-1", "openai", media_type="application/pdf"),
}


@pytest.mark.parametrize("content", MEDIA.values(), ids=MEDIA.keys())
def test_media_goes_both_ways(content: pai.MultiModalContent) -> None:
    """A file, URL or uploaded file becomes media that survives storage, and back what it was."""
    media = media_of(content)
    read = codec.from_json(codec.to_json(UserMessage(parts=(media,))))
    back = content_of(read.parts[0])  # type: ignore[arg-type]
    assert back == content
    assert type(back) is type(content)
    assert media.filename in (None, "bill", "bill.pdf")
    assert (back.media_type, back.identifier) == (content.media_type, content.identifier)


def test_media_of_our_own_making() -> None:
    """The media type decides which kind of URL pydantic-ai is given."""
    urls = [Media(media_type=kind, url="https://e.org/x") for kind in ("image/png", "audio/wav")]
    urls += [Media(media_type=kind, url="https://e.org/x") for kind in ("video/mp4", "text/csv")]
    assert [content_of(media).kind for media in urls] == [
        "image-url",
        "audio-url",
        "video-url",
        "document-url",
    ]


def test_request_messages_are_merged_in_order() -> None:
    """Neighbours on the request side become one request, and their order stays."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    asking = replace(user("one"), created_at=when)
    call = ToolCall(id="c", name="f")
    results = ToolMessage(
        parts=(
            Text(text="by the way"),
            ToolResult(call_id="c", name="f", parts=(Text(text="r1"), Text(text="r2"))),
        )
    )
    sent = model_messages([system("Be brief"), asking, assistant(call), results, user("two")])
    kinds = [[part.part_kind for part in message.parts] for message in sent]
    assert kinds == [
        ["system-prompt", "user-prompt"],
        ["tool-call"],
        ["tool-return", "user-prompt", "user-prompt"],
    ]
    assert isinstance(sent[0], pai.ModelRequest)
    assert sent[0].parts[1].timestamp == sent[0].timestamp == when
    assert [part.content for part in sent[2].parts] == ["r1\nr2", "by the way", "two"]


def test_failed_tools_are_said_to_have_failed() -> None:
    """A result that is an error has the outcome `failed`, any other `success`."""
    sent = model_messages(
        [
            tool_result("a", "boom", name="f", is_error=True),
            tool_result("b", "fine", name="f"),
        ]
    )
    parts = [part for part in sent[0].parts if isinstance(part, pai.ToolReturnPart)]
    assert [(p.tool_call_id, p.outcome) for p in parts] == [("a", "failed"), ("b", "success")]


# --- wire format ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_messages_on_the_wire(server: wire.OpenAIServer) -> None:
    """A conversation reaches the server as chat messages in order, with ids and results paired."""
    server.script(wire.text("Done."))
    calls = (
        ToolCall(id="c1", name="weather", args='{"city": "Paris"}'),
        ToolCall(id="c2", name="clock"),
    )
    results = ToolMessage(
        parts=(
            ToolResult(call_id="c1", name="weather", parts=(Text(text="mild"),)),
            ToolResult(call_id="c2", name="clock", parts=(Text(text="boom"),), is_error=True),
        )
    )
    reply = await ProviderModel(chat_model(server)).respond(
        asked(system("Be brief."), user("Weather?"), assistant("Let me see.", *calls), results)
    )
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Paris"}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "mild"},
        {"role": "tool", "tool_call_id": "c2", "content": '{"error":"boom"}'},
    ]
    assert reply.text == "Done."
    assert (reply.finish_reason, reply.model) == ("stop", "scripted-1")
    assert reply.usage == Usage(input_tokens=7, output_tokens=3, requests=1)
    assert reply.provider["provider_response_id"] == "chatcmpl-1"


@pytest.mark.anyio
async def test_settings_on_the_wire(server: wire.OpenAIServer) -> None:
    """Params, tools and the additional settings arrive under the provider's names."""
    server.script(wire.text("ok"))
    params = LLMParams(
        temperature=0.25,
        max_tokens=99,
        tool_choice="required",
        user="u-1",
        additional={"top_p": 0.5, "seed": 7},
    )
    await ProviderModel(chat_model(server)).respond(asked(params=params, tools=(WEATHER, CLOCK)))
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.25, 0.5, 7)
    assert (body["max_completion_tokens"], body["user"]) == (99, "u-1")
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "clock"]
    function = body["tools"][0]["function"]
    assert function["description"] == "The weather in a city."
    assert function["parameters"]["required"] == ["city"]
    assert "response_format" not in body


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        (NamedTool("clock"), {"type": "function", "function": {"name": "clock"}}),
        (None, "auto"),
    ],
)
async def test_tool_choice_on_the_wire(
    server: wire.OpenAIServer, choice: Any, expected: object
) -> None:
    """Each tool choice arrives as the provider's own; a named tool is the one that must be called."""
    server.script(wire.text("ok"))
    request = asked(params=LLMParams(tool_choice=choice), tools=(WEATHER, CLOCK))
    await ProviderModel(chat_model(server)).respond(request)
    assert server.bodies[0]["tool_choice"] == expected


@pytest.mark.anyio
async def test_output_schema_on_the_wire(server: wire.OpenAIServer) -> None:
    """An output schema is the provider's to enforce, and does not force a tool."""
    server.script(wire.text('{"city": "Paris"}'))
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    reply = await ProviderModel(chat_model(server)).respond(
        asked(output_schema=schema, tools=(CLOCK,))
    )
    sent = server.bodies[0]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"] == schema
    assert server.bodies[0]["tool_choice"] == "auto"
    assert json.loads(reply.text) == {"city": "Paris"}


@pytest.mark.anyio
async def test_media_on_the_wire(server: wire.OpenAIServer) -> None:
    """Pictures of a user go with the words, and those of a tool in a message behind its result."""
    server.script(wire.text("A cat."))
    picture = Media(media_type="image/png", data=PNG, filename="cat.png")
    link = Media(media_type="image/png", url="https://e.org/cat.png")
    model = chat_model(server, framing_announcement="never")
    await ProviderModel(model).respond(
        asked(
            user("What is this?", picture, link),
            assistant(ToolCall(id="c1", name="camera")),
            tool_result("c1", ["taken", picture], name="camera"),
        )
    )
    first, _, result, files = server.bodies[0]["messages"]
    data_url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert [part["type"] for part in first["content"]] == ["text", "image_url", "image_url"]
    assert first["content"][1]["image_url"]["url"] == data_url
    assert first["content"][2]["image_url"]["url"] == "https://e.org/cat.png"
    assert json.loads(result["content"]) == ["taken", "See file cat.png."]
    assert files["role"] == "user"
    images = [part for part in files["content"] if part["type"] == "image_url"]
    assert [image["image_url"]["url"] for image in images] == [data_url]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("message", "content"),
    [
        (user(""), ""),
        (user("", ""), ""),
        (user("\ud800 and \ud83d\ude00"), "\ufffd and 😀"),
    ],
    ids=["empty", "empty twice", "surrogates"],
)
async def test_odd_words_are_sent(
    server: wire.OpenAIServer, message: Message, content: str
) -> None:
    """Empty words and words that UTF-8 cannot hold do not stop a conversation."""
    server.script(wire.text("ok"))
    assert (await ProviderModel(chat_model(server)).respond(asked(message))).text == "ok"
    assert server.bodies[0]["messages"] == [{"role": "user", "content": content}]


@pytest.mark.anyio
async def test_parallel_calls_are_one_message(server: wire.OpenAIServer) -> None:
    """All calls of one reply are parts of one message, and go back as one message."""
    server.script(
        wire.tool_calls(("c1", "weather", '{"city":"Paris"}'), ("c2", "clock", "{}")),
        wire.text("Mild."),
    )
    model = ProviderModel(chat_model(server))
    reply = await model.respond(asked(tools=(WEATHER, CLOCK)))
    assert [(call.id, call.name, call.args) for call in reply.tool_calls] == [
        ("c1", "weather", '{"city":"Paris"}'),
        ("c2", "clock", "{}"),
    ]
    assert reply.finish_reason == "tool_call"
    results = ToolMessage(
        parts=tuple(
            ToolResult(call_id=call.id, name=call.name, parts=(Text(text="x"),))
            for call in reply.tool_calls
        )
    )
    await model.respond(asked(user("Hello"), stored(reply), results, tools=(WEATHER, CLOCK)))
    again = server.bodies[1]["messages"]
    assert [message["role"] for message in again] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in again[1]["tool_calls"]] == ["c1", "c2"]


@pytest.mark.anyio
async def test_what_an_api_lacks_is_fitted_to_it(server: wire.OpenAIServer) -> None:
    """Speech of another model goes to one that only reads as what was said."""
    server.script(wire.text("ok"))
    spoken = stored(reply_of(pai.ModelResponse(parts=[PARTS["speech"]])))
    await ProviderModel(chat_model(server)).respond(asked(user("a"), spoken, user("b")))
    assert [message["content"] for message in server.bodies[0]["messages"]] == ["a", "Hi", "b"]


def _anthropic() -> AnthropicModel:
    return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="x"))


def _responses() -> OpenAIResponsesModel:
    return OpenAIResponsesModel("gpt-5-mini", provider=OpenAIProvider(api_key="x"))


def _wire_messages(model: Any, messages: list[pai.ModelMessage]) -> object:
    """What the SDK is handed for these messages; private, but the only way without a server."""
    from pydantic_ai.models import ModelRequestParameters

    _, params = model.prepare_request({}, ModelRequestParameters())

    async def mapped() -> object:
        if isinstance(model, AnthropicModel):
            return await model._map_message(messages, params, {})  # pyright: ignore
        return await model._map_messages(messages, {}, params)  # pyright: ignore

    return asyncio.run(mapped())


@pytest.mark.parametrize(("make", "provider"), [(_anthropic, "anthropic"), (_responses, "openai")])
def test_the_same_bytes_go_back(make: Callable[[], Any], provider: str) -> None:
    """A stored reply with signatures and native tools maps to the same payload as the original."""
    response = pai.ModelResponse(
        parts=[
            pai.ThinkingPart("Hmm", id="rs_1", signature="c2ln", provider_name=provider),
            pai.TextPart("Let me look.", id="msg_1", provider_name=provider),
            pai.NativeToolCallPart(
                "web_search", {"query": "x"}, "srvtoolu_1", provider_name=provider
            ),
            pai.NativeToolReturnPart(
                "web_search",
                [{"type": "web_search_result", "url": "https://e.org", "title": "t"}]
                if provider == "anthropic"
                else {"status": "completed"},
                "srvtoolu_1",
                provider_name=provider,
            ),
            pai.ToolCallPart("f", {"a": 1}, "toolu_1", id="fc_1", provider_name=provider),
        ],
        provider_name=provider,
        model_name="m",
    )
    request = pai.ModelRequest(parts=[pai.UserPromptPart("hi")])
    result = pai.ModelRequest(parts=[pai.ToolReturnPart("f", "r", "toolu_1")])
    back = response_of(stored(reply_of(response)))
    before = _wire_messages(make(), [request, response, result])
    assert "c2ln" in repr(before)  # else the comparison says nothing about signatures
    assert _wire_messages(make(), [request, back, result]) == before


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_text_is_streamed(server: wire.OpenAIServer) -> None:
    """Text comes in deltas, then whole as a part, then the whole reply as `respond` gives it."""
    server.script(
        wire.streamed({"role": "assistant", "content": "Hel"}, {"content": "lo"}),
        wire.text("Hello"),
    )
    model = ProviderModel(chat_model(server))
    frames = await frames_of(model, asked())
    assert frames[:2] == [TextDelta(index=0, text="Hel"), TextDelta(index=0, text="lo")]
    assert isinstance(frames[2], PartEnd)
    assert frames[2].part == Text(text="Hello", provider=_text_of(frames[2]).provider)
    assert isinstance(frames[3], StreamEnd)
    assert len(frames) == 4
    streamed, whole = frames[3].message, await model.respond(asked())
    assert (streamed.text, streamed.usage, streamed.finish_reason, streamed.model) == (
        whole.text,
        whole.usage,
        whole.finish_reason,
        whole.model,
    )
    assert server.bodies[0]["stream"] is True


def _text_of(frame: PartEnd) -> Text:
    assert isinstance(frame.part, Text)
    return frame.part


@pytest.mark.anyio
async def test_tool_calls_are_streamed(server: wire.OpenAIServer) -> None:
    """Parallel calls split over chunks come as deltas that add up to the calls in the reply."""

    def piece(index: int, args: str, **fields: str) -> wire.Object:
        function = {"arguments": args, **{k: v for k, v in fields.items() if k == "name"}}
        ids = {k: v for k, v in fields.items() if k == "id"}
        return {"tool_calls": [{"index": index, **ids, "type": "function", "function": function}]}

    server.script(
        wire.streamed(
            piece(0, "", id="c1", name="weather"),
            piece(0, '{"ci'),
            piece(0, 'ty":"Paris"}'),
            piece(1, "{", id="c2", name="clock"),
            piece(1, "}"),
            finish_reason="tool_calls",
        )
    )
    frames = await frames_of(ProviderModel(chat_model(server)), asked(tools=(WEATHER, CLOCK)))
    added: dict[int, list[str]] = {}
    for frame in frames:
        if isinstance(frame, ToolCallDelta):
            call = added.setdefault(frame.index, ["", "", ""])
            call[0] = frame.id or call[0]
            call[1] += frame.name
            call[2] += frame.args
    assert added == {0: ["c1", "weather", '{"city":"Paris"}'], 1: ["c2", "clock", "{}"]}
    assert sum(isinstance(frame, ToolCallDelta) for frame in frames) == 5
    end = frames[-1]
    assert isinstance(end, StreamEnd)
    ends = [frame.part for frame in frames if isinstance(frame, PartEnd)]
    assert tuple(ends) == end.message.parts
    assert [(c.id, c.name, c.args) for c in end.message.tool_calls] == [
        ("c1", "weather", '{"city":"Paris"}'),
        ("c2", "clock", "{}"),
    ]
    assert end.message.finish_reason == "tool_call"


@pytest.mark.anyio
async def test_reasoning_is_streamed(server: wire.OpenAIServer) -> None:
    """Reasoning has deltas of its own, under its own index."""
    server.script(wire.streamed({"reasoning": "Hm"}, {"reasoning": "m"}, {"content": "Yes"}))
    frames = await frames_of(ProviderModel(chat_model(server)), asked())
    deltas = [frame for frame in frames if not isinstance(frame, PartEnd | StreamEnd)]
    assert deltas == [
        ReasoningDelta(index=0, text="Hm"),
        ReasoningDelta(index=0, text="m"),
        TextDelta(index=1, text="Yes"),
    ]
    end = frames[-1]
    assert isinstance(end, StreamEnd)
    assert (end.message.reasoning, end.message.text) == ("Hmm", "Yes")


@pytest.mark.anyio
async def test_every_part_has_its_end() -> None:
    """Parts of any kind in a stream have one `PartEnd`, equal to the part in the reply."""
    from pydantic_ai.models import CompletedStreamedResponse, ModelRequestParameters
    from pydantic_ai.models.wrapper import WrapperModel

    response = pai.ModelResponse(parts=list(PARTS.values()), model_name="m")

    class Whole(WrapperModel):
        """Streams a response that is there already."""

        @asynccontextmanager
        async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            yield CompletedStreamedResponse(
                response, model_request_parameters=ModelRequestParameters(), replay_events=True
            )

    frames = await frames_of(ProviderModel(Whole(TestModel())), asked())
    ends = {frame.index: frame.part for frame in frames if isinstance(frame, PartEnd)}
    end = frames[-1]
    assert isinstance(end, StreamEnd)
    assert end.message.parts == reply_of(response).parts
    assert [ends[index] for index in sorted(ends)] == list(end.message.parts)
    assert sum(isinstance(frame, PartEnd) for frame in frames) == len(PARTS)


@pytest.mark.anyio
async def test_function_model_streams() -> None:
    """A pydantic-ai model of the user's own streams its calls too."""

    async def answer(messages: list[pai.ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield {0: DeltaToolCall(name="clock", json_args="{", tool_call_id="c9")}
        yield {0: DeltaToolCall(json_args="}")}

    frames = await frames_of(ProviderModel(FunctionModel(stream_function=answer)), asked())
    assert isinstance(frames[-1], StreamEnd)
    call = frames[-1].message.tool_calls[0]
    assert (call.id, call.name, call.args) == ("c9", "clock", "{}")


@pytest.mark.anyio
async def test_nothing_is_asked_before_the_first_frame(server: wire.OpenAIServer) -> None:
    """A stream that nobody reads asks nothing."""
    server.script(wire.streamed({"content": "x"}))
    stream = ProviderModel(chat_model(server)).stream(asked())
    assert server.bodies == []
    await stream.aclose()
    assert server.bodies == []


@pytest.mark.anyio
async def test_closing_a_stream_ends_the_request(server: wire.OpenAIServer) -> None:
    """Closing the iterator early closes the HTTP response, and the model can be asked again."""
    server.script(wire.streamed({"content": "x"}, is_endless=True), wire.text("Again"))
    model = ProviderModel(chat_model(server))
    async with aclosing(model.stream(asked())) as stream:
        assert await anext(stream) == TextDelta(index=0, text="x")
    assert await asyncio.to_thread(server.is_left.wait, 10)
    assert (await model.respond(asked())).text == "Again"


@pytest.mark.anyio
async def test_a_stream_that_breaks_off_is_an_error(server: wire.OpenAIServer) -> None:
    """What came before a break is given, then an error, and never a `StreamEnd`."""
    server.script(wire.streamed({"content": "Hel"}, {"content": "lo"}, is_cut=True))
    frames: list[StreamFrame] = []
    with pytest.raises(ModelRequestError, match=r"gpt-4\.1") as caught:
        async for frame in ProviderModel(chat_model(server)).stream(asked()):
            frames.append(frame)
    assert frames == [TextDelta(index=0, text="Hel"), TextDelta(index=0, text="lo")]
    assert caught.value.status_code is None


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (500, "try again later"),
        (429, "wait"),
        (404, "the model's name"),
        (400, "change the request"),
    ],
)
async def test_http_errors(
    server: wire.OpenAIServer, status: int, advice: str, is_streamed: bool
) -> None:
    """An HTTP error is a ModelRequestError with its status and one sentence with the reason."""
    server.script(wire.failure(status, "The scripted reason. " + "More. " * 500))
    model = ProviderModel(chat_model(server))
    with pytest.raises(ModelRequestError, match=r"gpt-4\.1") as caught:
        await (frames_of(model, asked()) if is_streamed else model.respond(asked()))
    assert caught.value.status_code == status
    text = str(caught.value)
    assert f"HTTP {status} (The scripted reason); " in text
    assert advice in text
    assert len(text) < 300
    assert len(server.bodies) == 1


@pytest.mark.anyio
async def test_errors_do_not_repeat_the_prompt(server: wire.OpenAIServer) -> None:
    """Neither what was asked nor a key is in an error, even if the provider says it."""
    secret = "my diary of the year nineteen eighty four"
    server.script(
        wire.failure(400, f"cannot read: {secret[5:]}"),
        wire.failure(400, "what is hunter2?"),
        wire.failure(401, "Incorrect API key: sk-secret-of-mine"),
    )
    model = ProviderModel(chat_model(server))
    with pytest.raises(ModelRequestError) as refused:
        await model.respond(asked(user(secret)))
    assert "nineteen" not in str(refused.value)
    assert refused.value.status_code == 400
    with pytest.raises(ModelRequestError) as short:
        await model.respond(asked(user("hunter2")))
    assert "hunter2" not in str(short.value)
    with pytest.raises(ModelRequestError, match="check the API key") as denied:
        await model.respond(asked())
    assert "sk-secret" not in str(denied.value)


@pytest.mark.anyio
async def test_malformed_answers(server: wire.OpenAIServer) -> None:
    """An answer that is not JSON, or not an answer, is a ModelRequestError without a status."""
    server.script(wire.garbage(), wire.Reply(body=b'{"id": "x"}'), wire.Reply(body=b"[1, 2]"))
    model = ProviderModel(chat_model(server))
    for _ in range(3):
        with pytest.raises(ModelRequestError, match=r"request to the model 'gpt-4\.1'") as caught:
            await model.respond(asked())
        assert caught.value.status_code is None
        assert caught.value.__cause__ is not None
        assert "\n" not in str(caught.value)


@pytest.mark.anyio
async def test_no_server() -> None:
    """A server that is not there is a ModelRequestError that names the model."""
    with wire.running_server() as server:
        model = ProviderModel(chat_model(server))
    with pytest.raises(ModelRequestError, match=r"'gpt-4\.1' failed: Connection error"):
        await model.respond(asked())


@pytest.mark.anyio
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_empty_replies(server: wire.OpenAIServer, is_streamed: bool) -> None:
    """A reply with nothing in it is an EmptyReplyError that tells the finish reason."""
    server.script(
        wire.streamed({"role": "assistant", "content": ""}, finish_reason="length")
        if is_streamed
        else wire.text("", finish_reason="length")
    )
    model = ProviderModel(chat_model(server))
    with pytest.raises(EmptyReplyError, match="length"):
        await (frames_of(model, asked()) if is_streamed else model.respond(asked()))


@pytest.mark.anyio
async def test_what_a_model_cannot_do(server: wire.OpenAIServer) -> None:
    """A request that pydantic-ai refuses is a UsageError, and nothing is sent."""
    model = ProviderModel(chat_model(server))
    with pytest.raises(UsageError, match="tool_choice"):
        await model.respond(asked(params=LLMParams(tool_choice="required")))
    with pytest.raises(UsageError, match="nothere"):
        await model.respond(
            asked(params=LLMParams(tool_choice=NamedTool("nothere")), tools=(CLOCK,))
        )
    assert server.bodies == []


@pytest.mark.anyio
async def test_the_last_of_several_models_is_told() -> None:
    """When all models behind one another fail, the error has the last one's status."""
    with wire.running_server() as first, wire.running_server() as second:
        first.script(wire.failure(500, "first"))
        second.script(wire.failure(503, "second"))
        model = ProviderModel(FallbackModel(chat_model(first), chat_model(second)))
        with pytest.raises(ModelRequestError, match="second") as caught:
            await model.respond(asked())
        assert caught.value.status_code == 503
        assert model.profile.has_native_schema is False


@pytest.mark.anyio
async def test_cancellation_passes(server: wire.OpenAIServer) -> None:
    """A cancelled request is cancelled, not an error of the model."""
    server.script(wire.streamed({"content": "x"}, is_endless=True))
    started = asyncio.Event()

    async def read() -> None:
        async for _ in ProviderModel(chat_model(server)).stream(asked()):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.is_left.wait, 10)


@pytest.mark.parametrize("name", ["nope:gpt", "gpt-5-mini", "openai:", "gateway/nope:x"])
def test_unknown_names(name: str) -> None:
    """A name that no provider answers to is an UnknownModelError that repeats it."""
    with pytest.raises(UnknownModelError, match=name):
        ProviderModel(name)


def test_unknown_names_are_corrected() -> None:
    """pydantic-ai's guess at what was meant is passed on."""
    with pytest.raises(UnknownModelError, match=r"did you mean 'anthropic:claude-haiku-4-5'\?"):
        ProviderModel("antropic:claude-haiku-4-5")


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is missing is named by the command that installs it."""
    for module in ("groq", "cohere"):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, f"pydantic_ai.providers.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=r'pip install "tenure\[groq\]"'):
        ProviderModel("groq:llama")
    with pytest.raises(MissingExtraError, match=r'pip install "pydantic-ai-slim\[cohere\]"'):
        resolve_model("cohere:command")


def test_missing_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key is a UsageError of one sentence that names the variable."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY") as caught:
        ProviderModel("anthropic:claude-haiku-4-5")
    assert not isinstance(caught.value, UnknownModelError | MissingExtraError)
    assert str(caught.value).count(". ") == 0


def test_profile() -> None:
    """The profile is what pydantic-ai knows, and what that leaves out has our defaults."""
    known: Any = {
        "context_window": 5000,
        "supports_json_schema_output": False,
        "supports_tools": False,
        "supports_forced_tool_choice": False,
        "supports_image_input": False,
    }
    answer = scripted(pai.ModelResponse(parts=[])).function
    assert ProviderModel(FunctionModel(answer, profile=known)).profile == ModelProfile(
        context_window=5000,
        has_native_schema=False,
        can_force_tools=False,
        has_tools=False,
        has_images=False,
    )
    bare = FunctionModel(answer, profile=lambda default: {})
    assert ProviderModel(bare).profile == ModelProfile()


@pytest.mark.anyio
async def test_usage_that_nobody_counted() -> None:
    """A reply without counts has no usage rather than one of zeros."""
    usage = RequestUsage(unmeasured_requests=1)
    response = pai.ModelResponse(parts=[pai.TextPart("x")], usage=usage)
    assert (await ProviderModel(scripted(response)).respond(asked())).usage is None


# --- event loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_named", [True, False])
def test_one_loop_after_the_other(server: wire.OpenAIServer, named: str, is_named: bool) -> None:
    """One model works in a second event loop, and keeps one connection within each."""
    server.script(wire.text("ok"))
    model = ProviderModel(named if is_named else chat_model(server))

    async def twice() -> list[str]:
        return [(await model.respond(asked())).text for _ in range(2)]

    for loops in (1, 2, 3):
        assert asyncio.run(twice()) == ["ok", "ok"]
        assert server.connections == loops
    gc.collect()


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_was_not_shut_down(
    server: wire.OpenAIServer, named: str, is_named: bool
) -> None:
    """After a loop that was closed without shutting down its generators, the next one works."""
    server.script(wire.text("ok"))
    model = ProviderModel(named if is_named else chat_model(server))
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(model.respond(asked())).text == "ok"
    loop.close()
    assert asyncio.run(model.respond(asked())).text == "ok"
    gc.collect()


def test_loops_in_threads_at_once(server: wire.OpenAIServer, named: str) -> None:
    """A model given by name works in loops of several threads at the same time."""
    server.script(wire.text("ok"))
    model = ProviderModel(named)
    barrier = Barrier(3, timeout=30)
    replies: list[str] = []

    async def ask() -> None:
        for _ in range(4):
            await asyncio.to_thread(barrier.wait)
            replies.append((await model.respond(asked())).text)

    threads = [Thread(target=asyncio.run, args=(ask(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == ["ok"] * 12
    assert server.connections == 3


@pytest.mark.anyio
async def test_many_tasks_of_one_loop(server: wire.OpenAIServer, named: str) -> None:
    """Tasks that ask at once on a fresh model all get their answer."""
    server.script(wire.text("ok"))
    model = ProviderModel(named)
    replies = await asyncio.gather(*(model.respond(asked()) for _ in range(8)))
    assert [reply.text for reply in replies] == ["ok"] * 8


@pytest.mark.anyio
async def test_a_model_that_is_let_go_closes_its_connections(
    server: wire.OpenAIServer, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections of a model that nobody holds any more are closed, in a loop that goes on."""
    monkeypatch.setattr("tenure.connections._GRACE_S", 0)
    server.script(wire.text("ok"))
    held = ProviderModel(named)
    await held.respond(asked())
    await ProviderModel(named).respond(asked())
    assert await asyncio.to_thread(server.wait_for_open_connections, 1)
    assert (await held.respond(asked())).text == "ok"
    assert server.connections == 2


def test_a_sync_agent_closes_its_connections_at_exit(server: wire.OpenAIServer) -> None:
    """A script that ends without closing anything leaves no connection open, and says nothing."""
    server.script(wire.text("hello"))
    script = (
        "import sys\n"
        "from tenure.sync import Agent\n"
        "print(Agent(model='openai-chat:scripted-1').run('hi'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script],
        env={**os.environ, "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
