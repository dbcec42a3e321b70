"""Subgraphs whose tools the model chooses: what it is asked, what is offered then, and what stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tenure import (
    Agent,
    InvalidValueError,
    IterationLimitError,
    ModelProfile,
    ModelRequest,
    ModelRequestError,
    RunContext,
    StructuredOutputError,
    TextDelta,
    ToolCall,
    ToolMessage,
    assistant,
    tool,
    tool_result,
    user,
)
from tenure import graph_edges as edges
from tenure import graph_nodes as nodes
from tenure.graph import Graph
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    They may be negative.
    """
    return a + b


@tool
def weather(city: str) -> str:
    """Look up the weather."""
    return "rain"


@tool
def mail(to: str) -> str:
    """Send a mail."""
    return "sent"


TOOLS = [add, weather, mail]


def asking(description: str = "") -> Graph[Any, str]:
    """A graph that asks the model once."""
    made = Graph[Any, str]("travel", description=description)
    ask = made.node(nodes.node_llm_request(), name="ask")
    made.edge(made.start, ask)
    made.edge(ask, made.finish, edges.on_assistant_message())
    return made


def around(inner: Graph[Any, str], *, first: Any = None, tools: Any = "auto") -> Graph[str, Any]:
    """A graph of a node, a subgraph whose tools are chosen, and one that asks again."""
    made = Graph[str, Any]("main")
    before = made.node(first or nodes.node_do_nothing(), name="before")
    sub = made.subgraph(inner, tools=tools)
    again = made.node(nodes.node_llm_request(), name="again")
    made.edge(made.start, before)
    made.edge(before, sub)
    made.edge(sub, again)
    made.edge(again, made.finish, edges.on_assistant_message())
    return made


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


def texts(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages]


async def test_the_chosen_tools_are_offered_inside() -> None:
    """Inside are the tools that the model names, in the order in which they were; afterwards all."""
    model = ScriptedModel(['["mail", "add"]', "one", "two"])
    agent = Agent(model=model, tools=TOOLS, strategy=around(asking()))
    assert (await agent.run("hi")).output == "two"
    assert offered(model) == [[], ["add", "mail"], ["add", "weather", "mail"]]


async def test_the_prompt_is_as_before() -> None:
    """Neither the question nor the answer is in a later request, or in what the run has said."""
    model = ScriptedModel(['{"result": ["add"]}', "one", "two"])
    result = await Agent(model=model, tools=TOOLS, strategy=around(asking())).run("hi")
    assert texts(model.requests[1]) == ["hi"]
    assert texts(model.requests[2]) == ["hi", "one", "one"]
    assert [m.text for m in result.new_messages] == ["hi", "one", "one", "two"]


async def test_the_model_is_told_what_it_chooses_for() -> None:
    """Behind the conversation it reads the description, the input, and each tool in one line."""

    async def greet(ctx: RunContext, text: str) -> str:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user("Hello."), assistant("Good day."))
        return text

    model = ScriptedModel(["[]", "one", "two"])
    graph = around(asking("Plan a journey."), first=greet)
    await Agent(model=model, tools=TOOLS, strategy=graph, system_prompt="Be brief.").run("To Rome?")
    *before, question = texts(model.requests[0])
    assert before == ["Be brief.", "Hello.", "Good day."]
    assert question.endswith(
        "\n\nTask: Plan a journey.\n\nIts input:\nTo Rome?\n\nTools:\n"
        "- add: Add two numbers. They may be negative.\n"
        "- weather: Look up the weather.\n"
        "- mail: Send a mail."
    )
    assert model.requests[0].output_schema is not None
    assert offered(model)[1] == []


async def test_without_a_description_the_name_is_told() -> None:
    """A subgraph without a description is announced by its node's name."""
    model = ScriptedModel(["[]", "one", "two"])
    await Agent(model=model, tools=TOOLS, strategy=around(asking())).run("hi")
    assert "\n\nTask: travel\n\n" in texts(model.requests[0])[-1]


@dataclass
class Journey:
    city: str


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Journey("Rome"), "Journey(city='Rome')"),
        (user("To Rome?"), "<conversation>\n[user] To Rome?\n</conversation>"),
        (
            tool_result("c", "sunny", name="weather"),
            "<conversation>\n[result of weather] sunny\n</conversation>",
        ),
    ],
)
async def test_any_input_is_told(given: Any, told: str) -> None:
    """The input is told as text, whatever it is; of a message, who said what, and what tools gave."""

    def give(ctx: RunContext, text: str) -> Any:
        return given

    inner = Graph[Any, str]("inner")
    done = inner.node(lambda ctx, value: "done", name="done")
    inner.edge(inner.start, done)
    inner.edge(done, inner.finish)
    model = ScriptedModel(["[]", "two"])
    await Agent(model=model, tools=TOOLS, strategy=around(inner, first=give)).run("hi")
    assert f"\n\nIts input:\n{told}\n\n" in texts(model.requests[0])[-1]


async def test_unknown_names_are_ignored() -> None:
    """A name that no offered tool has chooses nothing, and one that is given twice counts once."""
    model = ScriptedModel(['["fly", "add", "add", "Mail"]', "one", "two"])
    await Agent(model=model, tools=TOOLS, strategy=around(asking())).run("hi")
    assert offered(model)[1] == ["add"]


async def test_only_tools_offered_now_can_be_chosen() -> None:
    """A subgraph inside another one chooses among the tools that the outer one offers."""
    outer = Graph[Any, str]("outer")
    inner = outer.subgraph(asking(), tools="auto")
    outer.edge(outer.start, inner)
    outer.edge(inner, outer.finish)
    model = ScriptedModel(['["add", "mail"]', "one", "two"])
    graph = around(outer, tools=[add, weather])
    await Agent(model=model, tools=TOOLS, strategy=graph).run("hi")
    assert "mail" not in texts(model.requests[0])[-1]
    assert offered(model) == [[], ["add"], ["add", "weather", "mail"]]


async def test_without_tools_nothing_is_asked() -> None:
    """Where no tool is offered there is nothing to choose, and the model is not asked."""
    model = ScriptedModel(["one", "two"])
    assert (await Agent(model=model, strategy=around(asking())).run("hi")).output == "two"
    assert len(model.requests) == 2


async def test_the_question_counts_as_a_model_call() -> None:
    """It is one of the calls that `max_iterations` allows."""
    inner = asking()
    graph = around(inner)
    inner.counts_nodes = graph.counts_nodes = False
    model = ScriptedModel(['["add"]', "one", "two"])
    agent = Agent(model=model, tools=TOOLS, strategy=graph, max_iterations=2)
    with pytest.raises(IterationLimitError, match="max_iterations=2 model calls"):
        await agent.run("hi")
    assert offered(model) == [[], ["add"]]


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        (['["add"]', ModelRequestError("HTTP 500")], ModelRequestError),
        ([ModelRequestError("HTTP 500")], ModelRequestError),
        (["I do not know.", "I still do not."], StructuredOutputError),
    ],
)
async def test_a_failure_leaves_tools_and_prompt(
    replies: list[Reply], error: type[Exception]
) -> None:
    """When the subgraph raises, or the choice cannot be had, tools and prompt are as before."""
    graph = Graph[str, list[str]]("main")
    sub = graph.subgraph(asking(), tools="auto")

    async def guarded(ctx: RunContext, text: str) -> list[str]:
        with pytest.raises(error):
            await sub.function(ctx, text)
        assert [m.text for m in ctx.conversation if m.text != "hi"] == []
        return [spec.name for spec in ctx.llm.tools]

    guard = graph.node(guarded)
    graph.edge(graph.start, guard)
    graph.edge(guard, graph.finish)
    agent = Agent(model=ScriptedModel(replies), tools=TOOLS, strategy=graph)
    assert (await agent.run("hi")).output == ["add", "weather", "mail"]


async def test_an_answer_is_put_right() -> None:
    """A model that no provider holds to a schema reads it, and may put its answer right once."""
    profile = ModelProfile(has_native_schema=False)
    model = ScriptedModel(["Just add.", '["add"]', "one", "two"], profile=profile)
    await Agent(model=model, tools=TOOLS, strategy=around(asking())).run("hi")
    assert "JSON schema" in texts(model.requests[0])[-1]
    assert offered(model)[2] == ["add"]


async def test_calls_under_way_do_not_matter() -> None:
    """A subgraph that is given a reply with calls can choose its tools before they have results."""
    call = ToolCall(id="c", name="add", args='{"a": 1, "b": 2}')
    inner = Graph[Any, str]("inner")
    execute = inner.node(nodes.node_execute_tools(), name="execute")
    send = inner.node(nodes.node_llm_send_tool_results(), name="send")
    inner.edge(inner.start, execute)
    inner.edge(execute, send)
    inner.edge(send, inner.finish, edges.on_assistant_message())
    model = ScriptedModel([assistant(call), '["add"]', "3", "two"])
    graph = around(inner, first=nodes.node_llm_request())
    result = await Agent(model=model, tools=TOOLS, strategy=graph).run("1 + 2?")
    assert result.output == "two"
    assert "[assistant calls add]" in texts(model.requests[1])[-1]
    assert not any(isinstance(m, ToolMessage) for m in model.requests[1].messages)
    assert [m.role for m in model.requests[2].messages] == ["user", "assistant", "tool"]


async def test_the_choice_is_not_streamed() -> None:
    """Whoever watches a run that streams reads what is said to the user, not which tools are chosen."""
    model = ScriptedModel(['["add"]', "one", "two"])
    agent = Agent(model=model, tools=TOOLS, strategy=around(asking()))
    async with agent.run_stream("hi") as stream:
        said = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert said == ["one", "two"]


async def test_what_is_attached_waits_for_the_user() -> None:
    """What a feature puts in front of what the user says is not taken by the question."""

    def attach(ctx: RunContext, text: str) -> str:
        ctx.llm.attach("Notes.")
        return text

    model = ScriptedModel(["[]", "one", "two"])
    await Agent(model=model, tools=TOOLS, strategy=around(asking(), first=attach)).run("hi")
    assert not any("Notes." in text for text in texts(model.requests[0]))
    assert texts(model.requests[1]) == ["Notes.\n\nhi"]


async def test_tools_from_an_iterator_serve_every_run() -> None:
    """Tools that are given as an iterator are the same in each run."""
    model = ScriptedModel(["one", "two", "one", "two"])
    agent = Agent(model=model, tools=TOOLS, strategy=around(asking(), tools=iter([add])))
    for _ in range(2):
        await agent.run("hi")
    assert [offered(model)[n] for n in (0, 2)] == [["add"], ["add"]]


@pytest.mark.parametrize("tools", ["some", "add", "", add, None])
def test_other_selections_are_refused(tools: Any) -> None:
    """A text that is no selection, and a tool outside of a list, are refused when a graph is built."""
    with pytest.raises(InvalidValueError, match="must be 'all', 'none', 'auto' or a list"):
        Graph[str, str]().subgraph(asking(), tools=tools)
