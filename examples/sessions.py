"""A help desk whose strategy does its work in LLM sessions, step by step, and prints each of them.

    python examples/sessions.py

It reads an order's number from what the user says as a value of a type, runs a tool itself, asks the
model twice, removes the draft from the history, and puts a summary in place of old messages.

The replies of the model are written down in `REPLIES`, so that the example needs no network.
"""

import asyncio
from contextlib import suppress

from pydantic import BaseModel

from tenure import (
    Agent,
    ChatMemory,
    InMemoryStore,
    Message,
    ModelError,
    RunContext,
    WriteSession,
    system,
    tool,
    user,
)
from tenure.testing import ScriptedModel

LONGEST = 4
"""How many messages a history may have, without the agent's system prompt, before it is summed up."""

REPLIES = [
    # The first run: the answer of a type, a draft, the answer.
    '{"order": 17, "is_urgent": true}',
    "Order 17 was handed over to the carrier yesterday. It is expected to arrive on Friday.",
    "Your parcel is on its way and arrives on Friday!",
    # The second run: the same, and then the summary.
    '{"order": 21, "is_urgent": false}',
    "Order 21 is waiting to be packed. There is no date yet.",
    "We still have to pack order 21.",
    "Order 17 arrives on Friday.",
]


class Ticket(BaseModel):
    """What a message to the help desk is about."""

    order: int
    is_urgent: bool


@tool
def order_status(order: int) -> str:
    """Look up where an order is."""
    return {17: "shipped, arrives on Friday", 21: "not packed yet"}.get(order, "unknown")


async def help_desk(ctx: RunContext, text: str) -> str:
    print(f"user: {text}")
    async with ctx.llm.write_session() as session:
        session.append_prompt(user(text))

    # A question on the side: a read session does not record the reply.
    async with ctx.llm.read_session() as session:
        ticket = (await session.request_llm_structured(Ticket)).unwrap()
    print(f"  ticket: {ticket!r}")

    async with ctx.llm.write_session() as session:
        # Code knows which tool to run, so the model need not be asked.
        status = await session.call_tool_raw(order_status, {"order": ticket.order})
        print(f"  tool: {status}")

        before = session.prompt
        session.append_prompt(system(f"Order {ticket.order}: {status}."))
        draft = await session.request_llm_without_tools()
        print(f"  draft: {draft.text}")
        session.append_prompt(user("Say it in one short sentence."))
        answer = await session.request_llm_without_tools()
        print(f"  answer: {answer.text}")

        # Only the answer stays: not the draft, and not what led to it.
        session.prompt = before.appended(answer)

    if len(ctx.conversation) >= LONGEST:
        # When the block raises, it changes nothing: the history is long, and the answer is there.
        with suppress(ModelError):
            async with ctx.llm.write_session() as session:
                await sum_up(session)
    print(f"  history: {texts(ctx.conversation)}")
    return answer.text


async def sum_up(session: WriteSession) -> None:
    """Put a summary in place of all but the last question and its answer."""
    before = session.prompt
    session.drop_last_n_messages(2)
    session.append_prompt(user("Sum up what was said, in one sentence."))
    summary = await session.request_llm_without_tools()
    print(f"  summary: {summary.text}")
    own, *_, question, answer = before.messages
    earlier = user(f"Said earlier: {summary.text}")
    session.prompt = before.copy(messages=[own, earlier, question, answer])


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


async def main() -> None:
    store = InMemoryStore()
    agent = Agent(
        model=ScriptedModel(REPLIES),
        system_prompt="You work at the help desk of a shop.",
        tools=[order_status],
        strategy=help_desk,
        features=[ChatMemory(store)],
    )
    await agent.run("Where is order 17? I need it now!", "ada")
    await agent.run("Thanks. And order 21?", "ada")

    # A rewritten history is a new branch. The old one is still there.
    print(f"stored: {texts(await store.read('ada'))}")
    print(f"before: {[entry.message.text for entry in await store.entries('ada', branch=1)]}")


if __name__ == "__main__":
    asyncio.run(main())
