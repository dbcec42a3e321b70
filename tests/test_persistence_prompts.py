"""Whatever nodes do to the prompt, a run that is interrupted anywhere has the prompt that it had there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import Died, agent_of, dies_after, line_of

from tenure import (
    Agent,
    ChatMemory,
    InMemoryStore,
    Message,
    Persistence,
    Prompt,
    RunContext,
    Text,
    UserMessage,
    WriteSession,
    assistant,
    user,
)

Edit = Callable[[WriteSession], None]


def append(session: WriteSession) -> None:
    session.append_prompt(user("same"), assistant(f"after {len(session.prompt.messages)}"))


def append_again(session: WriteSession) -> None:
    """The same message a second time."""
    if session.prompt.messages:
        session.prompt = session.prompt.copy(
            messages=[*session.prompt.messages, session.prompt.messages[-1]]
        )


def change(session: WriteSession) -> None:
    """Other words under the same id."""

    def changed(message: Message) -> Message:
        if isinstance(message, UserMessage):
            return replace(message, parts=(Text(text=f"{message.text}!"),))
        return message

    session.rewrite_prompt(lambda p: p.copy(messages=[changed(m) for m in p.messages]))


def renew(session: WriteSession) -> None:
    """The same words under other ids."""
    session.rewrite_prompt(
        lambda p: p.copy(
            messages=[
                replace(m, id=f"{m.id}+") if isinstance(m, UserMessage) else m for m in p.messages
            ]
        )
    )


def turn_round(session: WriteSession) -> None:
    def turned(prompt: Prompt) -> Prompt:
        return prompt.copy(messages=prompt.messages[::-1])

    session.rewrite_prompt(turned)


EDITS: list[Edit] = [
    append,
    append_again,
    change,
    renew,
    turn_round,
    lambda session: session.leave_last_n_messages(3),
    lambda session: session.drop_last_n_messages(1),
    lambda session: session.clear_history(),
]


def node_of(number: int, edits: list[int]) -> Callable[[RunContext, Any], Any]:
    async def node(ctx: RunContext, value: Any) -> Any:
        for edit in edits:
            async with ctx.llm.write_session() as session:
                EDITS[edit](session)
        return value

    node.__name__ = f"n{number}"
    return node


def ids_and_texts(messages: list[Message]) -> list[tuple[str, str]]:
    """The texts, and which messages have one id."""
    names: dict[str, str] = {}
    return [(names.setdefault(m.id, f"m{len(names)}"), m.text) for m in messages]


def agent(store: InMemoryStore, steps: list[list[int]], window: int | None) -> Agent:
    memory = ChatMemory(store)
    if window is not None:
        memory.window_size(window)

    def end(ctx: RunContext, value: Any) -> Any:
        ctx.storage["end"] = None
        return [
            ids_and_texts(ctx.conversation),
            sorted(m.text for m in ctx.llm.dropped),
        ]

    nodes = [node_of(number, edits) for number, edits in enumerate(steps)]
    return agent_of(
        store,
        line_of(*nodes, end),
        features=[memory, Persistence(store)],
        system_prompt="Be brief.",
        prompt=[user("example")],
    )


async def outcome(
    steps: list[list[int]], deaths: list[int], window: int | None
) -> tuple[object, list[tuple[str, bool]]]:
    store = InMemoryStore()
    await agent(store, [[0], [0]], window).run("before", "s")
    known = {message.id for message in await store.read("s")}
    for death in deaths:
        dying = agent(store, steps, window)
        dies_after(dying, f"line/n{death}")
        with pytest.raises(Died):
            await dying.run("go", "s")
    result = await agent(store, steps, window).run("go", "s")
    stored = [(message.text, message.id in known) for message in await store.read("s")]
    return result.output, stored


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(0, len(EDITS) - 1), max_size=3), min_size=2, max_size=5),
    data=st.data(),
    window=st.sampled_from([None, 2, 3]),
)
def test_the_prompt_is_what_it_was(
    steps: list[list[int]], data: st.DataObject, window: int | None
) -> None:
    """Prompt, what was taken out of it, and the stored history are those of a run that never died."""
    deaths = sorted(data.draw(st.sets(st.integers(0, len(steps) - 1), min_size=1), label="deaths"))
    assert asyncio.run(outcome(steps, deaths, window)) == asyncio.run(outcome(steps, [], window))
