"""What `tenure show --view` says, against the request that a run really sends."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import (
    Agent,
    BudgetError,
    ChatMemory,
    InMemoryStore,
    Message,
    Part,
    TokenEstimator,
    ToolMessage,
)
from tenure.agent import own_system_prompt
from tenure.explanations import ExplainedView, explained_view
from tenure.features.preprocessing import WindowSizePreprocessor, WindowTokensPreprocessor
from tenure.testing import ScriptedModel
from tenure.testing.histories import random_history
from tenure.windows import TokenBudget

seeds = st.integers(0, 2**32)
budgets = st.sampled_from([None, None, 60, 150, 400])
many = settings(deadline=None, derandomize=True, max_examples=150)

WINDOW = 5


def stored(seed: int) -> list[Message]:
    """A history as a store may hold it: each id once."""
    return [*{message.id: message for message in random_history(seed, turns=5)}.values()]


def explained(history: list[Message], budget: int | None) -> ExplainedView:
    limit = TokenBudget(tokens=budget, counter=TokenEstimator()) if budget is not None else None
    memory = WindowTokensPreprocessor(limit) if limit else WindowSizePreprocessor(WINDOW)
    return explained_view(
        history,
        window=memory.preprocess,
        window_name="the window",
        system_prompt=own_system_prompt("Be kind."),
        budget=limit,
    )


async def request(history: list[Message], budget: int | None) -> list[Message]:
    """What a run on the history sends in front of what the user says; empty if it cannot."""
    store = InMemoryStore()
    await store.append("s", history)
    memory = ChatMemory(store)
    _ = memory.window_size(WINDOW) if budget is None else memory.window_tokens(budget)
    model = ScriptedModel(["ok"])
    try:
        await Agent(model=model, system_prompt="Be kind.", features=[memory]).run("", "s")
    except BudgetError:
        return []
    return [*model.requests[0].messages[:-1]]


@many
@given(seeds, budgets)
def test_an_explained_view_is_the_request_that_is_sent(seed: int, budget: int | None) -> None:
    """Whatever the history, what `--view` shows is what a run sends in front of the next message."""
    history = stored(seed)
    sent = asyncio.run(request(history, budget))
    assert [(m.role, m.parts) for m in explained(history, budget).sent] == [
        (m.role, m.parts) for m in sent
    ]


@many
@given(seeds, budgets)
def test_nothing_is_left_out_without_a_reason(seed: int, budget: int | None) -> None:
    """Each message is sent or said to be left out, and nothing is said twice."""
    history = stored(seed)
    view = explained(history, budget)
    if not view.sent:
        return
    sent = {message.id for message in view.sent}
    left_out: dict[str, list[Part | None]] = {}
    for each in view.left_out:
        assert not any(part is each.part for part in left_out.get(each.message.id, ()))
        left_out.setdefault(each.message.id, []).append(each.part)
    for message in history:
        parts = left_out.get(message.id, [])
        if None in parts:
            assert (message.id in sent, parts.count(None)) == (False, 1)
        elif message.id not in sent:
            assert len(parts) == len(message.parts)
        elif isinstance(message, ToolMessage):
            pieces = [m for m in view.sent if m.id == message.id]
            texts = sum(len(piece.parts) for piece in pieces)
            assert texts + len(parts) >= len(message.parts)
