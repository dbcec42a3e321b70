"""A run from its beginning to its end: what features are told, and what becomes of a failure."""

from __future__ import annotations

import asyncio

from tenure.events import RunCompleted, RunFailed, RunResult, RunStarted
from tenure.run import RunContext
from tenure.run_nodes import carried_out


async def performed(ctx: RunContext) -> RunResult:
    """Have a run's features and its strategy do their work, and return what came of it.

    Raises:
        Exception: Whatever one of them has raised, after all features were told.
    """
    try:
        for feature in ctx.features:
            await feature.before_run(ctx)
        for feature in ctx.features:
            await feature.on_run_start(ctx)
        await ctx.send(RunStarted(run_id=ctx.run_id, session_id=ctx.session_id, input=ctx.input))
        output = await carried_out(ctx, ctx.strategy)
        result = RunResult(
            output=output,
            new_messages=ctx.new_messages,
            session_id=ctx.session_id,
            run_id=ctx.run_id,
            usage=ctx.usage,
        )
        for feature in ctx.features:
            await feature.on_run_end(ctx, result)
        await ctx.release()
    except BaseException as exc:
        await _failed(ctx, exc)
        raise
    await ctx.send(RunCompleted(result=result))
    return result


async def _failed(ctx: RunContext, exc: BaseException) -> None:
    """Tell the features and the handlers of a failure, and let the next run in."""
    cancelled: asyncio.CancelledError | None = None
    for feature in ctx.features:
        try:
            await feature.on_run_error(ctx, exc)
        except Exception as failure:  # what failed first is what the caller must hear
            exc.add_note(f"{type(feature).__name__} failed, too: {failure}")
        except asyncio.CancelledError as again:  # the other features clean up all the same
            cancelled = again
    try:
        await ctx.release()
    except asyncio.CancelledError as again:
        cancelled = again
    if cancelled is not None and isinstance(exc, Exception):
        raise cancelled from exc
    if isinstance(exc, Exception):
        failed = RunFailed(run_id=ctx.run_id, session_id=ctx.session_id, error=exc)
        try:
            await ctx.send(failed)
        except Exception as failure:
            exc.add_note(f"A handler of events failed, too: {failure}")
