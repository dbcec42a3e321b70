"""What an agent does with an input. The default is the tool loop, a graph; any async function will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.graph import Graph
from tenure.graph_edges import on_condition, transformed
from tenure.graph_nodes import node_llm_compress_history
from tenure.messages import Message
from tenure.run import RunContext
from tenure.saying import user
from tenure.structured import StructuredResult

if TYPE_CHECKING:
    from tenure.compression import HistoryCompression


def _tool_loop() -> Graph[str, object]:
    graph = Graph[str, object]("tool_loop", counts_nodes=False)

    @graph.node
    async def ask(ctx: RunContext, turn: Message) -> StructuredResult[object]:
        # What is said is in the context before the model is asked, so that a run that fails has it.
        async with ctx.llm.write_session() as session:
            if ctx.compression is not None:  # before the turn, which has to stay as it is
                await ctx.compression.apply(session, upcoming=[turn])
            session.append_prompt(turn)
        async with ctx.llm.write_session() as session:
            if ctx.output_schema is None:
                reply = await session.request_llm()
                return StructuredResult(message=reply, value=reply.text)
            result = await session.request_llm_structured(ctx.output_schema, allow_tool_calls=True)
            result.unwrap()  # a reply that is no answer ends the run
            return result

    @graph.node
    async def execute_tools(ctx: RunContext, answer: StructuredResult[object]) -> Message:
        return await ctx.execute_tools(answer.message.tool_calls)

    def calls_tools(answer: StructuredResult[object]) -> bool:
        return bool(answer.message.tool_calls)

    def output(answer: StructuredResult[object]) -> object:
        return answer.value

    @graph.node
    def say(ctx: RunContext, text: str) -> Message:
        return user(text, clock=ctx.clock)

    graph.edge(graph.start, say)
    graph.edge(say, ask)
    graph.edge(ask, execute_tools, on_condition(calls_tools))
    graph.edge(execute_tools, ask)
    graph.edge(ask, graph.finish, transformed(output))
    return graph


tool_loop = _tool_loop()
"""The default strategy: ask, run the tools that are called, tell the results, until none is called.

Tool calls take precedence over text: a reply that has both runs its tools. No session is open while tools
run, so that they may open one. The output is the text of the last reply; with `Agent(output_type=...)` the
value in it, or `StructuredOutputError` when it is not of that type and could not be repaired.
"""


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
    compress = node_llm_compress_history(
        strategy, preserve_memory=preserve_memory, retrieval_model=retrieval_model
    )
    await compress(ctx, None)
