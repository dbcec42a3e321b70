"""What it costs to choose what a model is sent."""

from __future__ import annotations

from pathlib import Path

from benchmarks.conversations import long_and_short, texts
from benchmarks.timing import Row, in_ms, medians_in_turns
from tenure import (
    Agent,
    ChatMemory,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    assistant,
    system,
    user,
    valid_view,
)
from tenure.messages import Text
from tenure.testing import ScriptedModel

WINDOW = 50


async def run_with_a_window(folder: Path, rounds: int) -> Row:
    """An agent's run with a window of 50, on a conversation of 10,000 messages and on one of 100."""
    store = await long_and_short(folder, rounds, short_turns=50)
    model = ScriptedModel(["ok"] * 2 * rounds)
    agent = Agent(model=model, features=[ChatMemory(store).window_size(WINDOW)])
    long, short = await medians_in_turns(
        rounds,
        lambda n: agent.run(f"question {n}", "long"),
        lambda n: agent.run(f"question {n}", f"short{n}"),
    )
    await store.close()
    return Row(
        work="a run with a window of 50, on 10,000 messages / on 100",
        measured=in_ms(long, short),
        value=long / short,
        at_most=1.3,
    )


def history(messages: int) -> list[Message]:
    """A conversation in which every other turn calls a tool."""
    made: list[Message] = []
    number = 0
    while len(made) < messages:
        question, answer = texts(number)
        made.append(user(question))
        if number % 2:
            made.append(assistant("Let me look.", ToolCall(id=f"c{number}", name="look")))
            found = ToolResult(call_id=f"c{number}", name="look", parts=(Text(text=answer),))
            made.append(ToolMessage(parts=(found,)))
        made.append(assistant(answer))
        number += 1
    return made[:messages]


async def view_of_a_long_conversation(folder: Path, rounds: int) -> Row:
    """The valid view of 10,000 messages, and a loop that looks once at every part of them."""
    messages = history(10_000)
    own: SystemMessage = system("You are kind.")

    async def view(_: int) -> None:
        valid_view(messages, system_prompt=own)

    async def look(_: int) -> None:
        kinds: dict[str, int] = {}
        for message in messages:
            for part in message.parts:
                kinds[part.kind] = kinds.get(part.kind, 0) + 1

    viewed, looked = await medians_in_turns(rounds, view, look)
    return Row(
        work="a view of 10,000 messages / a loop over their parts",
        measured=in_ms(viewed, looked),
        value=viewed / looked,
        at_most=10,
    )


ALL = [run_with_a_window, view_of_a_long_conversation]
