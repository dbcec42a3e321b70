"""A chat in the terminal that still knows you the next time.

    python examples/chat_loop.py                        the offline model
    python examples/chat_loop.py openai:gpt-5-mini      any other model
    python examples/chat_loop.py local --session work   another conversation

An empty line, Ctrl-D or Ctrl-C ends it. Lines may come from a pipe, too.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator

from tenure import Agent, ChatMemory, ModelError, TenureError, open_store


def lines() -> Iterator[str]:
    prompt = "you> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        if not line.strip():
            return
        yield line


async def answer(agent: Agent, line: str, session_id: str) -> None:
    # Leaving the block early, as Ctrl-C does, cancels the run: then nothing of it is stored.
    async with agent.run_stream(line, session_id) as stream:
        async for piece in stream.text():
            print(piece, end="", flush=True)
    print()


def chat(model: str, store_url: str, session_id: str) -> None:
    store = open_store(store_url)
    agent = Agent(
        model=model,
        system_prompt="You are a helpful assistant. Answer in a few sentences.",
        features=[ChatMemory(store).window_size(50)],
    )
    # One event loop for the whole chat. Input is read outside of it, so that Ctrl-C works there, too.
    with asyncio.Runner() as runner:
        try:
            for line in lines():
                try:
                    runner.run(answer(agent, line, session_id))
                except ModelError as exc:  # the conversation is as it was before this line
                    print(f"{exc} You may try again.", file=sys.stderr)
        finally:
            runner.run(store.close())


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat with an agent that remembers.")
    parser.add_argument("model", nargs="?", default="local", help="default: %(default)s")
    parser.add_argument("--session", default="default", help="the conversation to continue")
    parser.add_argument("--store", default="sqlite:///chat.db", help="default: %(default)s")
    options = parser.parse_args()
    try:
        chat(options.model, options.store, options.session)
    except TenureError as exc:  # an unknown model, a missing package, a file that is no database
        sys.exit(str(exc))
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
