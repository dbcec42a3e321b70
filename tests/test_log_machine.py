"""Every driver and the reference do the same, whatever is done to them in whatever order.

A Hypothesis state machine drives the SQLite store and the one in RAM side by side. After each step both
have given the same answer or the same error, and all that can be read of them is equal.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenure import Message, Owner, Participant, Store, Usage, assistant, user
from tenure.stores.base import Appended, Conversation, Lease, OnConflict
from tenure.stores.inmemory import InMemoryStore
from tenure.stores.run_records import NewCall, NewCheckpoint
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ManualClock

T = TypeVar("T")

NAMES = "abcd"
ANN, BOB = Owner(agent_id="a", user_id="ann"), Owner(agent_id="a")
IS_SOAK = "TENURE_SOAK" in os.environ  # set by `make soak`

where = st.integers(0, 11)  # see LogMachine.name
runs = st.sampled_from(["r1", "r2"])
participants = st.none() | st.builds(
    Participant, owner=st.sampled_from([ANN, BOB]), ends_run=st.booleans()
)
holders = st.sampled_from(["h1", "h2", "h3"])
picks = st.lists(st.integers(0, 9), max_size=4)  # see LogMachine.messages
places = st.integers(0, 12)  # see LogMachine.place
deltas = st.none() | st.integers(-3, 1)  # of the expected revision from the right one
leases = st.none() | st.integers(0, 3)  # see LogMachine.lease


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clocks = (ManualClock(), ManualClock())
        self.reference: Store = InMemoryStore(clock=self.clocks[0])
        self.driver: Store = SQLiteStore(self.folder / "chat.db", clock=self.clocks[1])
        self.loop = asyncio.Runner()
        self.count = 0
        self.given: dict[str, list[Message]] = {}
        self.leases: dict[str, list[Lease]] = {}
        self.cursors: list[Conversation] = []

    def teardown(self) -> None:
        self.loop.run(self.driver.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    # --- writing ---

    @initialize()
    def begin(self) -> None:
        for name in NAMES[:2]:
            messages = self.messages(name, [1, 2, 3])
            self.both(lambda store, n=name, m=messages: store.append(n, m))

    @rule(
        at=where,
        picked=picks,
        run_id=st.none() | runs,
        is_failed=st.booleans(),
        delta=deltas,
        on_conflict=st.sampled_from(["raise", "rebase", "fork"]),
        by=participants,
        lease=leases,
    )
    def append(
        self,
        at: int,
        picked: list[int],
        run_id: str | None,
        is_failed: bool,
        delta: int | None,
        on_conflict: OnConflict,
        by: Participant | None,
        lease: int | None,
    ) -> None:
        name = self.name(at)
        messages, expected = self.messages(name, picked), self.expected(name, delta)
        held = self.lease(name, lease)
        forks: list[str] = []

        async def append(store: Store) -> Appended:
            appended = await store.append(
                name,
                messages,
                run_id=run_id,
                is_failed=is_failed,
                expected_revision=expected,
                on_conflict=on_conflict,
                by=by if run_id is not None else None,
                lease=held,
            )
            if appended.session_id != name:
                forks.append(appended.session_id)
                appended = replace(appended, session_id="the fork")
            return appended

        self.both(append)
        if forks:
            self.adopt(forks)

    @rule(at=where, picked=picks)
    def plainly_append(self, at: int, picked: list[int]) -> None:
        name = self.name(at)
        messages = self.messages(name, [*picked, 0])
        self.both(lambda store: store.append(name, messages))

    @rule(
        at=where,
        picked=picks,
        place=places,
        run_id=st.none() | runs,
        delta=deltas,
        by=participants,
        lease=leases,
    )
    def start_branch(
        self,
        at: int,
        picked: list[int],
        place: int,
        run_id: str | None,
        delta: int | None,
        by: Participant | None,
        lease: int | None,
    ) -> None:
        name = self.name(at)
        messages, after = self.messages(name, picked), self.place(name, place)
        expected, held = self.expected(name, delta), self.lease(name, lease)
        self.both(
            lambda store: store.start_branch(
                name,
                messages,
                after=after,
                run_id=run_id,
                expected_revision=expected,
                by=by if run_id is not None else None,
                lease=held,
            )
        )

    @rule(at=where, new=st.sampled_from(NAMES), place=st.none() | places)
    def fork(self, at: int, new: str, place: int | None) -> None:
        name = self.name(at)
        after = None if place is None else self.place(name, place)
        self.both(lambda store: store.fork(name, new, after=after))

    @rule(at=where, new=st.sampled_from(NAMES), value=st.sampled_from(["", "ü\0", None, [1.5]]))
    def change_the_name_or_notes(self, at: int, new: str, value: object) -> None:
        name = self.name(at)
        if value == "":
            self.both(lambda store: store.rename(name, new))
        else:
            self.both(lambda store: store.set_metadata(name, {"x": value}))

    @rule(
        at=where,
        modulus=st.integers(1, 4),
        how=st.sampled_from(["change", "remove", "raise", "delete"]),
        is_sure=st.integers(0, 2),
    )
    def erase(self, at: int, modulus: int, how: str, is_sure: int) -> None:
        name = self.name(at)
        if how == "delete" and not is_sure:
            self.both(lambda store: store.delete(name))
            return

        def redaction(message: Message) -> Message | None:
            if int(message.text.rstrip("*")) % modulus:
                return message
            if how == "raise":
                raise ZeroDivisionError
            return (
                None if how == "remove" else replace(message, parts=user(message.text + "*").parts)
            )

        self.both(lambda store: store.redact(name, redaction))

    @rule(owner=st.sampled_from([ANN, BOB]), is_sure=st.integers(0, 2))
    def forget(self, owner: Owner, is_sure: int) -> None:
        if not is_sure:
            self.both(lambda store: store.forget(owner))

    # --- runs and leases ---

    @rule(
        at=where,
        run_id=runs,
        what=st.sampled_from(["log", "log", "log", "commit", "commit as failed", "discard"]),
        picked=picks,
        lease=leases,
    )
    def go_on_with_a_run(
        self, at: int, run_id: str, what: str, picked: list[int], lease: int | None
    ) -> None:
        name = self.name(at)
        held = self.lease(name, lease)
        if what == "log":
            messages = self.messages(name, picked)
            self.both(lambda store: store.append_to_run(name, run_id, messages, lease=held))
        elif what == "discard":
            self.both(lambda store: store.discard_run(name, run_id, lease=held))
        else:
            is_failed = what == "commit as failed"
            self.both(lambda s: s.commit_run(name, run_id, is_failed=is_failed, lease=held))

    @rule(
        at=where,
        run_id=runs,
        what=st.sampled_from(
            ["begin", "save", "save", "save", "call", "call", "end", "back", "undo"]
        ),
        owner=st.sampled_from([ANN, BOB]),
        picked=picks,
        number=st.integers(0, 5),
        lease=leases,
    )
    def go_on_with_checkpoints(
        self,
        at: int,
        run_id: str,
        what: str,
        owner: Owner,
        picked: list[int],
        number: int,
        lease: int | None,
    ) -> None:
        place, held = (self.name(at), run_id), self.lease(self.name(at), lease)
        self.count += 1
        text = str(self.count)
        match what:
            case "begin":
                self.both(lambda s: s.begin_run(*place, owner=owner, input=text, lease=held))
            case "save":
                messages = self.messages(place[0], picked)
                new = NewCheckpoint(
                    checkpoint_id=text if number else "one",
                    node_path="n",
                    scope="abc"[number % 3],
                    state=text,
                )
                keep = number if number > 2 else None
                self.both(
                    lambda s: s.save_checkpoint(
                        *place, new, messages=messages, keep_last=keep, lease=held
                    )
                )
            case "call":
                call = NewCall(
                    node_path="n", position=0, origin="", place=number, tool=text, args=""
                )
                self.both(lambda s: s.begin_call(*place, call, lease=held))
            case "end":
                self.both(lambda s: s.end_call(*place, number, outcome=text, lease=held))
            case "back":
                found = self.loop.run(self.reference.checkpoints(*place))
                version = found[number % len(found)].version if found else number // 4
                self.both(lambda s: s.roll_back(*place, version=version, lease=held))
            case _:
                self.both(lambda s: s.mark_undone(*place, number, lease=held))

    @rule(
        at=where,
        holder=holders,
        what=st.sampled_from(["wait", "wait", "look", "renew", "release"]),
        lease=st.integers(0, 3),
        seconds=st.sampled_from([0.001, 0.001, 10, 15, 20, 30]),
    )
    def compete(self, at: int, holder: str, what: str, lease: int, seconds: float) -> None:
        name = self.name(at)
        for clock in self.clocks:
            clock.advance(seconds)
        if what == "renew":
            if held := self.lease(name, lease):
                self.both(lambda store: asyncio.to_thread(store.renew_lease, held))
        elif what == "release":
            self.both(lambda store: store.release_lease(name, holder=holder))
        else:
            wait = what == "wait"
            given = self.both(lambda store: store.request_lease(name, holder=holder, wait=wait))
            if given is not None and given not in self.leases.setdefault(name, []):
                self.leases[name].append(given)

    # --- reading ---

    @rule(
        at=where,
        last=st.integers(0, 9),
        after=places,
        limit=st.none() | st.integers(0, 4),
        branch=st.none() | st.integers(0, 5),
    )
    def read(self, at: int, last: int, after: int, limit: int | None, branch: int | None) -> None:
        name = self.name(at)
        found = self.both(lambda store: store.read(name, last=last))
        whole = self.both(lambda store: store.read(name))
        assert found == whole[max(0, len(whole) - last) :]
        self.both(lambda store: store.read(name, last=limit, revision=after))
        page = self.both(lambda s: s.entries(name, after=after, limit=limit, branch=branch))
        entries = self.both(lambda s: s.entries(name, branch=branch))
        assert page == [entry for entry in entries if entry.seq > after][:limit]

    @rule(limit=st.none() | st.integers(0, 3), cursor=st.none() | st.integers(0, 9))
    def list_a_page(self, limit: int | None, cursor: int | None) -> None:
        after = None if cursor is None or not self.cursors else self.cursors[-1 - cursor :][0]
        self.both(lambda store: store.conversations(limit=limit, after=after))

    @invariant()
    def equal(self) -> None:
        state = self.both(everything)
        for conversation, entries, branches, runs, *_ in state:
            seqs = [entry.seq for entry in entries]
            assert seqs == sorted(set(seqs))
            assert len(entries) == conversation.message_count
            assert all(seq <= conversation.last_seq for seq in seqs)
            assert branches[conversation.branch] == entries
            assert len({entry.message.id for entry in entries}) == len(entries)
            assert all(entry.run_id == run for run, own in runs.items() for entry in own)
        self.cursors += [conversation for conversation, *_ in state]
        del self.cursors[:-10]

    # --- what is drawn, and how it is done ---

    def name(self, at: int) -> str:
        """A conversation that is there, as a rule."""
        there = sorted(c.session_id for c in self.loop.run(self.reference.conversations()))
        return there[at % len(there)] if there and at < 10 else NAMES[at % len(NAMES)]

    def messages(self, name: str, picked: list[int]) -> list[Message]:
        """New messages for the smaller numbers, earlier ones of the conversation for the greater."""
        given = self.given.setdefault(name, [])
        messages: list[Message] = []
        for pick in picked:
            if pick > 4 and given:
                messages.append(given[-1 - (pick - 5) * len(given) // 5])
                continue
            self.count += 1
            usage = Usage(input_tokens=self.count, output_tokens=1, requests=1)
            text = str(self.count)
            made = user(text) if pick % 3 else replace(assistant(text), usage=usage)
            messages.append(replace(made, id=f"m{text}"))
            given.append(messages[-1])
        return messages

    def expected(self, name: str, delta: int | None) -> int | None:
        found = self.loop.run(self.reference.conversation(name))
        revision = found.revision if found is not None else 0
        return None if delta is None else max(0, revision + delta)

    def place(self, name: str, place: int) -> int:
        """A place in the present history, or just outside of it."""
        found = self.loop.run(self.reference.conversation(name))
        return place % ((found.last_seq if found is not None else 0) + 3) - 1

    def lease(self, name: str, number: int | None) -> Lease | None:
        """One of the leases that were given of this conversation, the last for 0."""
        given = self.leases.get(name, [])
        return given[-1 - number] if number is not None and number < len(given) else None

    def adopt(self, forks: list[str]) -> None:
        """Give the same name to the forks that the two stores have made."""
        assert len(forks) == 2
        taken = {c.session_id for c in self.loop.run(self.reference.conversations())}
        new = next((name for name in NAMES if name not in taken), None)
        for store, fork in zip((self.reference, self.driver), forks, strict=True):
            if new is None:
                self.loop.run(store.delete(fork))
            else:
                self.loop.run(store.rename(fork, new))

    def both(self, operation: Callable[[Store], Awaitable[T]]) -> T | Any:
        """Do it in both stores; the answers are equal."""
        wanted = self.loop.run(outcome(operation(self.reference)))
        found = self.loop.run(outcome(operation(self.driver)))
        assert found == wanted, "the driver differs from the reference"
        return wanted


async def everything(store: Store) -> list[Any]:
    """All that can be read of all conversations."""
    state: list[Any] = []
    for conversation in await store.conversations():
        name = conversation.session_id
        assert await store.conversation(name) == conversation
        branches = await store.branches(name)
        entries = await store.entries(name)
        assert await store.read(name) == [entry.message for entry in entries]
        logs = {b.branch: await store.entries(name, branch=b.branch) for b in branches}
        runs = {b.run_id: await store.run_entries(name, b.run_id) for b in branches if b.run_id}
        begun = await store.runs(name), await store.runs(name, unfinished=True)
        saved = {run_id: await store.checkpoints(name, run_id) for run_id in ("r1", "r2")}
        calls = {run_id: await store.calls(name, run_id) for run_id in ("r1", "r2")}
        owned = [
            [c.session_id for c in await store.conversations(owner=owner)] for owner in (ANN, BOB)
        ]
        state.append((conversation, entries, logs, runs, branches, begun, saved, calls, owned))
    return state


async def outcome(awaitable: Awaitable[object]) -> object:
    """What it gives, or what it raises, as a value that can be compared."""
    try:
        return await awaitable
    except Exception as exc:
        return type(exc), getattr(exc, "revision", None), getattr(exc, "expected_revision", None)


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    derandomize=not IS_SOAK,
    max_examples=1000 if IS_SOAK else 36,
    stateful_step_count=60 if IS_SOAK else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[p for p in Phase if IS_SOAK or p not in (Phase.shrink, Phase.explain)],
)
