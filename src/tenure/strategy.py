"""What an agent does with an input. The default is the tool loop; any async function will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.messages import user

if TYPE_CHECKING:
    from tenure.run import RunContext


async def tool_loop(ctx: RunContext, text: str) -> str:
    """Ask the model, run the tools that it calls, tell it the results, until it calls none.

    Tool calls take precedence over text: a reply that has both runs its tools. No session is open while
    tools run, so that they may open one.

    Returns:
        The text of the last reply.
    """
    async with ctx.llm.write_session() as session:
        session.append_prompt(user(text, clock=ctx.clock))
        reply = await session.request_llm()
    while reply.tool_calls:
        results = await ctx.execute_tools(reply.tool_calls)
        async with ctx.llm.write_session() as session:
            session.append_prompt(results)
            reply = await session.request_llm()
    return reply.text
