"""The requests of a run: hooks, events, counting."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from tenure.errors import ModelRequestError
from tenure.events import ModelCallCompleted, ModelCallStarted
from tenure.models import Model, ModelRequest, StreamEnd, StreamFrame

if TYPE_CHECKING:
    from tenure.messages import AssistantMessage
    from tenure.run import RunContext


async def asked(
    ctx: RunContext, model: Model, request: ModelRequest, *, in_frames: bool
) -> AssistantMessage:
    """See `RunContext.ask`."""
    if in_frames:
        return await _last_of(streamed(ctx, model, request))
    request = await _before(ctx, request)
    reply = await model.respond(request)
    await _after(ctx, request, reply)
    return reply


async def streamed(
    ctx: RunContext, model: Model, request: ModelRequest
) -> AsyncGenerator[StreamFrame]:
    """See `RunContext.stream`."""
    request = await _before(ctx, request)
    frames = model.stream(request)
    has_ended = False
    try:
        async for frame in frames:
            await ctx.send(frame)
            if isinstance(frame, StreamEnd):
                has_ended = True
                await _after(ctx, request, frame.message)
            yield frame
    finally:
        if isinstance(frames, AsyncGenerator):
            await cast("AsyncGenerator[StreamFrame]", frames).aclose()
    if not has_ended:
        raise ModelRequestError("The model's stream ended without a StreamEnd; ask again.")


async def _last_of(frames: AsyncGenerator[StreamFrame]) -> AssistantMessage:
    async with aclosing(frames):
        *_, last = [frame async for frame in frames]
    assert isinstance(last, StreamEnd)
    return last.message


async def _before(ctx: RunContext, request: ModelRequest) -> ModelRequest:
    ctx.count_model_call()
    for feature in ctx.features:
        request = await feature.before_model_call(ctx, request)
    await ctx.send(ModelCallStarted(request=request))
    return request


async def _after(ctx: RunContext, request: ModelRequest, reply: AssistantMessage) -> None:
    if reply.usage is not None:
        ctx.count_usage(reply.usage)
        if ctx.compression is not None:
            ctx.compression.learn(request, reply.usage)
    for feature in ctx.features:
        await feature.after_model_call(ctx, request, reply)
    await ctx.send(ModelCallCompleted(request=request, reply=reply))
