"""ChatMemory with a plain provider: Koog's test expectations (spec D8), case by case.

One difference: the agent's own system prompt is never stored, so a stored list is Koog's without it.
What differs on a store (a log) is in `test_chat_memory_log.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tenure import (
    Agent,
    ChatMemory,
    HistoryNotStoredError,
    InvalidValueError,
    Message,
    ModelRequestError,
    PreprocessorError,
    Prompt,
    RunContext,
    SystemMessage,
    UserMessage,
    assistant,
    system,
    user,
)
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Recorder:
    """A provider that records its calls; it overwrites, as Koog's do."""

    def __init__(self, seeded: dict[str, list[Message]] | None = None) -> None:
        self.kept = dict(seeded or {})
        self.loads: list[str] = []
        self.stores: list[str] = []

    def load(self, session_id: str) -> list[Message]:
        self.loads.append(session_id)
        return self.kept.get(session_id, [])

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.stores.append(session_id)
        self.kept[session_id] = messages


def seeded() -> list[Message]:
    return [user("old Q1"), assistant("old A1"), user("old Q2"), assistant("old A2")]


def roles(messages: Iterable[Message]) -> str:
    return "".join(message.role[0].upper() for message in messages)


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


async def converse(memory: ChatMemory, turns: int = 3, **options: object) -> ScriptedModel:
    """Run `turns` runs: Q1 is answered by Reply 1, and so on."""
    model = ScriptedModel([f"Reply {n}" for n in range(1, turns + 1)])
    agent = Agent(model=model, features=[memory], **options)
    for n in range(1, turns + 1):
        await agent.run(f"Q{n}", "s")
    return model


# --- load and store ---


async def test_loads_and_stores_once_a_run() -> None:
    """Each run loads once and stores once, with the exact session id."""
    provider = Recorder()
    agent = Agent(model=ScriptedModel(["1", "2", "3"]), features=[ChatMemory(provider)])
    for count, session_id in enumerate(["alpha", "beta", "gamma"], 1):
        await agent.run("hi", session_id)
        assert len(provider.stores) == len(provider.loads) == count
    assert provider.loads == provider.stores == ["alpha", "beta", "gamma"]


async def test_the_first_run_is_stored() -> None:
    """A first run with empty history stores its messages."""
    provider = Recorder()
    await converse(ChatMemory(provider), 1)
    assert texts(provider.kept["s"]) == ["Q1", "Reply 1"]


@pytest.mark.parametrize("session_id", ["user/42: a b", "日本語", "a'; DROP TABLE x", " "])
async def test_a_session_id_is_used_verbatim(session_id: str) -> None:
    """Session ids with any characters reach the provider as they are."""
    provider = Recorder()
    await Agent(model=ScriptedModel(["x"]), features=[ChatMemory(provider)]).run("q", session_id)
    assert provider.loads == provider.stores == [session_id]


async def test_without_a_session_id_nothing_is_stored() -> None:
    """A run without a session id neither loads nor stores."""
    provider = Recorder()
    result = await Agent(model=ScriptedModel(["x"]), features=[ChatMemory(provider)]).run("q")
    assert (provider.loads, provider.stores, result.session_id) == ([], [], None)


# --- content ---


async def first_strategy(ctx: RunContext, text: str) -> str:
    async with ctx.llm.write_session() as session:
        session.append_prompt(user(text))
        return (await session.request_llm()).text


@pytest.mark.parametrize("options", [{}, {"strategy": first_strategy}])
async def test_history_is_visible_to_every_strategy(
    options: dict[str, Callable[..., object]],
) -> None:
    """Earlier messages come before the new question, which is last, for both kinds of strategy."""
    provider = Recorder({"s": seeded()})
    model = await converse(ChatMemory(provider), 1, **options)
    assert texts(model.requests[0].messages) == ["old Q1", "old A1", "old Q2", "old A2", "Q1"]
    assert texts(provider.kept["s"]) == [*texts(seeded()), "Q1", "Reply 1"]


async def test_the_answer_is_the_result() -> None:
    """`run` returns the answer, what it added, and the conversation's id."""
    agent = Agent(model=ScriptedModel(["A"]), features=[ChatMemory(Recorder({"s": seeded()}))])
    result = await agent.run("Q", "s")
    assert str(result) == result.output == "A"
    assert texts(result.new_messages) == ["Q", "A"]
    assert result.session_id == "s"


# --- the system prompt ---


async def test_the_system_prompt_is_not_stored() -> None:
    """With or without a system prompt the stored list is U,A,U,A."""
    for options in ({"system_prompt": "Be brief."}, {}):
        provider = Recorder()
        await converse(ChatMemory(provider), 2, **options)
        assert roles(provider.kept["s"]) == "UAUA"


async def test_initial_messages_are_stored_once() -> None:
    """Messages of `prompt=` are stored with the first run, and not again by the second."""
    provider = Recorder()
    model = await converse(
        ChatMemory(provider),
        2,
        system_prompt="S",
        prompt=Prompt(messages=(user("I like to travel"),)),
    )
    assert texts(provider.kept["s"]) == ["I like to travel", "Q1", "Reply 1", "Q2", "Reply 2"]
    assert texts(model.requests[1].messages) == [
        "S", "I like to travel", "Q1", "Reply 1", "Q2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "configure",
    [
        lambda memory: memory,
        lambda memory: memory.window_size(0),
        lambda memory: memory.window_size(1),
        lambda memory: memory.filter_messages(lambda m: m.role == "user"),
        lambda memory: memory.filter_messages(lambda m: m.role != "system"),
        lambda memory: memory.filter_messages(lambda m: False),
    ],
)
async def test_the_system_prompt_is_first_and_once(
    configure: Callable[[ChatMemory], ChatMemory],
) -> None:
    """Whatever the window or filter, each request has the system prompt exactly once, and first (C20)."""
    model = await converse(configure(ChatMemory(Recorder())), 3, system_prompt="Be brief.")
    for request in model.requests:
        systems = [m for m in request.messages if isinstance(m, SystemMessage)]
        assert texts(systems) == ["Be brief."]
        assert request.messages[0] is systems[0]


async def test_a_changed_system_prompt_applies_at_once() -> None:
    """The prompt in the code is the one that is sent, also to an old conversation (C21)."""
    provider = Recorder()
    await converse(ChatMemory(provider), 1, system_prompt="Old.")
    model = await converse(ChatMemory(provider), 1, system_prompt="New.")
    systems = [m.text for m in model.requests[0].messages if m.role == "system"]
    assert systems == ["New."]


async def test_a_stored_copy_of_the_system_prompt_is_left_out() -> None:
    """A provider whose list holds the system prompt does not make the model see it twice."""
    provider = Recorder({"s": [system("Be brief."), *seeded()]})
    model = await converse(ChatMemory(provider), 1, system_prompt="Be brief.")
    assert roles(model.requests[0].messages) == "SUAUAU"


async def test_other_system_messages_stay_where_they_are() -> None:
    """System messages that code has added keep their place in history."""
    provider = Recorder({"s": [user("q"), system("The user is now in Porto."), assistant("a")]})
    model = await converse(ChatMemory(provider), 1, system_prompt="Be brief.")
    assert texts(model.requests[0].messages) == [
        "Be brief.", "q", "The user is now in Porto.", "a", "Q1",
    ]  # fmt: skip


# --- isolation and accumulation ---


async def test_sessions_do_not_leak() -> None:
    """Interleaved sessions see their own messages only."""
    model = ScriptedModel(list("1234"))
    agent = Agent(model=model, features=[ChatMemory()])
    for session_id in "ABAB":
        await agent.run(f"from {session_id}", session_id)
    assert texts(model.requests[2].messages) == ["from A", "1", "from A"]
    assert texts(model.requests[3].messages) == ["from B", "2", "from B"]


async def test_history_grows_in_order() -> None:
    """Three runs make six messages, alternating and in order; asking the same twice counts twice."""
    provider = Recorder()
    await converse(ChatMemory(provider))
    assert texts(provider.kept["s"]) == ["Q1", "Reply 1", "Q2", "Reply 2", "Q3", "Reply 3"]
    assert roles(provider.kept["s"]) == "UAUAUA"
    agent = Agent(model=ScriptedModel(["x"]), features=[ChatMemory(provider)])
    await agent.run("Q3", "s")
    assert texts(provider.kept["s"])[-4:] == ["Q3", "Reply 3", "Q3", "x"]


# --- providers ---


async def test_chat_memory_needs_no_argument() -> None:
    """A bare `ChatMemory()` remembers, in RAM; each one has its own."""
    model = await converse(ChatMemory(), 2)
    assert texts(model.requests[1].messages) == ["Q1", "Reply 1", "Q2"]
    assert texts((await converse(ChatMemory(), 1)).requests[0].messages) == ["Q1"]


async def test_two_agents_with_one_memory_share_conversations() -> None:
    """Agents that share a memory share its conversations."""
    memory = ChatMemory()
    await converse(memory, 1)
    model = await converse(memory, 1)
    assert texts(model.requests[0].messages) == ["Q1", "Reply 1", "Q1"]


async def test_providers_may_be_async_and_return_none() -> None:
    """`load` may return None for an unknown session; both methods may be async."""

    class Async:
        kept: list[Message] | None = None

        async def load(self, session_id: str) -> list[Message] | None:
            await asyncio.sleep(0)
            return self.kept

        async def store(self, session_id: str, messages: list[Message]) -> None:
            await asyncio.sleep(0)
            self.kept = messages

    provider = Async()
    await converse(ChatMemory(provider), 2)
    assert texts(provider.kept or []) == ["Q1", "Reply 1", "Q2", "Reply 2"]


async def test_an_empty_input_is_answered_and_stored() -> None:
    """An empty text is answered, and stored like any other."""
    provider = Recorder()
    agent = Agent(model=ScriptedModel(["A"]), features=[ChatMemory(provider)])
    assert str(await agent.run("", "s")) == "A"
    assert texts(provider.kept["s"]) == ["", "A"]


async def test_a_long_input_is_kept_whole() -> None:
    """An input of 10,000 characters is stored unchanged."""
    provider = Recorder()
    agent = Agent(model=ScriptedModel(["A"]), features=[ChatMemory(provider)])
    await agent.run("x" * 10_000, "s")
    assert provider.kept["s"][0].text == "x" * 10_000


@pytest.mark.parametrize("provider", [7, object(), ["sqlite:///x.db"]])
def test_something_else_is_no_provider(provider: object) -> None:
    """An object without load and store is refused when the memory is made."""
    with pytest.raises(InvalidValueError, match="cannot keep histories"):
        ChatMemory(provider)  # type: ignore[arg-type]


# --- windows ---


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (100, ["Q1", "Reply 1", "Q2", "Reply 2", "Q3", "Reply 3"]),
        (4, ["Q2", "Reply 2", "Q3", "Reply 3"]),
        (2, ["Q3", "Reply 3"]),
        (1, ["Reply 3"]),
        (0, []),
    ],
)
async def test_a_window_keeps_the_last_messages(size: int, expected: list[str]) -> None:
    """After three runs a provider keeps exactly the last `size` messages."""
    provider = Recorder()
    await converse(ChatMemory(provider).window_size(size))
    assert texts(provider.kept["s"]) == expected


async def test_a_window_of_four_over_four_runs() -> None:
    """The stored list has 2, 4, 4 and 4 messages; the first questions are gone at the end."""
    provider = Recorder()
    model = ScriptedModel([f"Reply {n}" for n in range(4)])
    agent = Agent(model=model, system_prompt="S", features=[ChatMemory(provider).window_size(4)])
    sizes: list[int] = []
    for n in range(4):
        await agent.run(f"Q{n}", "s")
        sizes.append(len(provider.kept["s"]))
    assert sizes == [2, 4, 4, 4]
    assert texts(provider.kept["s"]) == ["Q2", "Reply 2", "Q3", "Reply 3"]


async def test_a_window_cuts_what_is_loaded() -> None:
    """Of four messages a window of two shows the model the last two, and the new question."""
    model = await converse(ChatMemory(Recorder({"s": seeded()})).window_size(2), 1)
    assert texts(model.requests[0].messages) == ["old Q2", "old A2", "Q1"]


def test_a_negative_window_is_refused_at_once() -> None:
    """A negative window is refused when it is configured, not when it is used."""
    with pytest.raises(InvalidValueError, match="-1 messages"):
        ChatMemory().window_size(-1)


# --- filters and the order of pre-processors ---


async def test_a_filter_keeps_what_it_is_true_for() -> None:
    """A filter by length drops the long reply; one by role leaves only the user's messages."""
    provider = Recorder()
    memory = ChatMemory(provider).filter_messages(lambda m: len(m.text) <= 20)
    agent = Agent(model=ScriptedModel(["Short", "Long " * 20]), features=[memory])
    await agent.run("Q1", "s")
    await agent.run("Q2", "s")
    assert texts(provider.kept["s"]) == ["Q1", "Short", "Q2"]
    provider = Recorder()
    await converse(ChatMemory(provider).filter_messages(lambda m: isinstance(m, UserMessage)))
    assert texts(provider.kept["s"]) == ["Q1", "Q2", "Q3"]


async def test_pre_processors_work_in_the_order_of_the_calls() -> None:
    """Window then filter filters among the last; filter then window keeps the last survivors."""
    provider = Recorder()
    await converse(ChatMemory(provider).window_size(5).filter_messages(lambda m: m.role == "user"))
    assert texts(provider.kept["s"]) == ["Q1", "Q2", "Q3"]
    provider = Recorder()
    await converse(ChatMemory(provider).filter_messages(lambda m: m.role == "user").window_size(2))
    assert texts(provider.kept["s"]) == ["Q2", "Q3"]


async def test_a_pre_processor_may_work_at_one_moment_only() -> None:
    """`apply_on` limits a pre-processor to loading or storing."""
    provider = Recorder({"s": seeded()})
    memory = ChatMemory(provider).add_preprocessor(lambda m: m[-2:], apply_on=("load",))
    model = await converse(memory, 1)
    assert texts(model.requests[0].messages) == ["old Q2", "old A2", "Q1"]
    assert texts(provider.kept["s"]) == [*texts(seeded()), "Q1", "Reply 1"]  # hidden, not removed
    provider = Recorder({"s": seeded()})
    memory = ChatMemory(provider).add_preprocessor(lambda m: m[-2:], apply_on=("store",))
    model = await converse(memory, 1)
    assert texts(model.requests[0].messages) == [*texts(seeded()), "Q1"]
    assert texts(provider.kept["s"]) == ["Q1", "Reply 1"]


async def test_the_same_pre_processor_may_be_added_twice() -> None:
    """A pre-processor that is added twice works twice; an async function will do."""

    async def louder(messages: list[Message]) -> list[Message]:
        return [
            replace(m, parts=(replace(m.parts[0], text=f"{m.text}!"),))  # type: ignore[type-var]
            for m in messages
        ]

    provider = Recorder()
    memory = ChatMemory(provider)
    for _ in range(2):
        memory.add_preprocessor(louder, apply_on=("store",))
    await converse(memory, 1)
    assert texts(provider.kept["s"]) == ["Q1!!", "Reply 1!!"]


@pytest.mark.parametrize(
    ("returned", "says"),
    [(None, "None; return"), ("text", "of type str"), ([user("x"), "y"], "of type str in it")],
)
async def test_a_pre_processor_that_returns_something_else_fails_the_run(
    returned: object, says: str
) -> None:
    """A pre-processor that returns no messages fails the run before the model is asked, by name."""

    def broken(messages: list[Message]) -> object:
        return returned

    provider = Recorder({"s": seeded()})
    model = ScriptedModel(["never"])
    memory = ChatMemory(provider).add_preprocessor(broken)  # type: ignore[arg-type]
    with pytest.raises(PreprocessorError, match=f"pre-processor broken returned .*{says}"):
        await Agent(model=model, features=[memory]).run("q", "s")
    assert (model.requests, provider.stores) == ([], [])


@pytest.mark.parametrize("preprocessor", [None, 7, "x"])
def test_something_else_is_no_pre_processor(preprocessor: object) -> None:
    """What can't be called and has no `preprocess` is refused at once, as is an unknown moment."""
    with pytest.raises(InvalidValueError, match="is no pre-processor"):
        ChatMemory().add_preprocessor(preprocessor)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="must hold 'load', 'store' or both"):
        ChatMemory().add_preprocessor(lambda m: m, apply_on=("save",))  # type: ignore[arg-type]


# --- failure ---


async def test_a_failed_run_stores_nothing() -> None:
    """When the model fails, the history is what it was, without the user's message (C61)."""
    provider = Recorder({"s": seeded()})
    agent = Agent(model=ScriptedModel([ModelRequestError("down")]), features=[ChatMemory(provider)])
    with pytest.raises(ModelRequestError, match="down"):
        await agent.run("q", "s")
    assert provider.stores == []


async def test_a_cancelled_run_stores_nothing() -> None:
    """A run that is cancelled while the model works stores nothing."""
    provider = Recorder()
    asked = asyncio.Event()

    async def never(_: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(model=ScriptedModel([never]), features=[ChatMemory(provider)])
    run = asyncio.create_task(agent.run("q", "s"))
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert provider.stores == []


async def test_a_load_that_fails_fails_the_run() -> None:
    """When `load` raises, the run fails with that error before the model is asked."""

    class Broken(Recorder):
        def load(self, session_id: str) -> list[Message]:
            raise OSError("no disk")

    model = ScriptedModel(["never"])
    with pytest.raises(OSError, match="no disk"):
        await Agent(model=model, features=[ChatMemory(Broken())]).run("q", "s")
    assert model.requests == []


async def test_an_answer_that_could_not_be_stored_is_in_the_error() -> None:
    """When `store` raises, the error says so in one sentence, and has the whole result."""

    class Broken(Recorder):
        def store(self, session_id: str, messages: list[Message]) -> None:
            raise OSError("disk full")

    agent = Agent(model=ScriptedModel(["the answer"]), features=[ChatMemory(Broken())])
    with pytest.raises(
        HistoryNotStoredError, match=r"'s' was .* not stored: OSError: disk full\. The"
    ) as info:
        await agent.run("q", "s")
    assert info.value.result.output == "the answer"
    assert texts(info.value.result.new_messages) == ["q", "the answer"]
    assert isinstance(info.value.__cause__, OSError)
