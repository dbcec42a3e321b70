"""What an agent does with an input. The default is the tool loop; any async function will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.messages import Message, user

if TYPE_CHECKING:
    from tenure.compression import HistoryCompression
    from tenure.run import RunContext


async def tool_loop(ctx: RunContext, text: str) -> object:
    """Ask the model, run the tools that it calls, tell it the results, until it calls none.

    Tool calls take precedence over text: a reply that has both runs its tools. No session is open while
    tools run, so that they may open one.

    Returns:
        The text of the last reply; with `Agent(output_type=...)` the value in it.

    Raises:
        StructuredOutputError: The last reply is not of the output type, and could not be repaired.
    """
    turn: Message = user(text, clock=ctx.clock)
    while True:
        # What is said is in the context before the model is asked, so that a run that fails has it.
        async with ctx.llm.write_session() as session:
            if ctx.compression is not None:  # before the turn, which has to stay as it is
                await ctx.compression.apply(session, upcoming=[turn])
            session.append_prompt(turn)
        async with ctx.llm.write_session() as session:
            if ctx.output_schema is None:
                reply = await session.request_llm()
                output: object = reply.text
            else:
                result = await session.request_llm_structured(
                    ctx.output_schema, allow_tool_calls=True
                )
                reply, output = result.message, result.unwrap()
        if not reply.tool_calls:
            return output
        turn = await ctx.execute_tools(reply.tool_calls)


async def llm_compress_history(
    ctx: RunContext,
    *,
    strategy: HistoryCompression | None = None,
    preserve_memory: bool = True,
    retrieval_model: object = None,
) -> None:
    """Compress a run's history, in a session of its own: a step of a strategy.

    Args are those of `WriteSession.replace_history_with_tldr`.
    """
    async with ctx.llm.write_session() as session:
        await session.replace_history_with_tldr(
            strategy, preserve_memory=preserve_memory, retrieval_model=retrieval_model
        )
