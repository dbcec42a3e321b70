"""A real OpenAI-compatible HTTP server on loopback, with scripted replies and a record of requests.

`OpenAIServer` answers each request, such as one to `/v1/chat/completions` or `/v1/embeddings`, with the
next reply of its script and keeps the request's JSON body. Replies are made by the functions below;
`streamed` ones are server-sent events in chunked encoding, one HTTP chunk per event.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server sends. `events` makes it a stream, which `is_cut` or `is_endless` spoil."""

    status: int = 200
    body: bytes = b""
    events: tuple[bytes, ...] | None = None
    is_cut: bool = False
    is_endless: bool = False


@dataclass(kw_only=True)
class OpenAIServer:
    """The server as tests see it.

    Args:
        url: For `OpenAIProvider(base_url=...)` or `OPENAI_BASE_URL`.
        bodies: The JSON bodies of the requests, in order of arrival.
        connections: How many connections were opened.
        is_left: Set when a client closed an endless stream.
        answer: Makes the reply to a request's body, in place of the script.
    """

    url: str
    bodies: list[Object] = field(default_factory=list)
    connections: int = 0
    is_left: Event = field(default_factory=Event)
    replies: deque[Reply] = field(default_factory=deque)
    answer: Callable[[Object], Reply] | None = None
    changes: Condition = field(default_factory=Condition)
    open_connections: int = 0

    def script(self, *replies: Reply) -> None:
        """Add replies; the last one scripted is given again and again."""
        self.replies.extend(replies)

    def wait_for_open_connections(self, count: int) -> bool:
        """Wait until this many connections are open; False when that takes over ten seconds."""
        with self.changes:
            return self.changes.wait_for(lambda: self.open_connections == count, timeout=10)


def completion(
    message: Object, *, finish_reason: str = "stop", usage: Object | None = None
) -> Reply:
    """A whole reply with this assistant message."""
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": None, **message},
            }
        ],
        "usage": usage or {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
    return Reply(body=json.dumps(answer).encode())


def text(words: str, **options: Any) -> Reply:
    """A whole reply of one text."""
    return completion({"content": words}, **options)


def tool_calls(*calls: tuple[str, str, str], content: str | None = None) -> Reply:
    """A whole reply that calls tools: triples of id, name and arguments as JSON text."""
    made = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": args}}
        for id_, name, args in calls
    ]
    return completion({"content": content, "tool_calls": made}, finish_reason="tool_calls")


def streamed(
    *deltas: Object, finish_reason: str = "stop", is_cut: bool = False, is_endless: bool = False
) -> Reply:
    """A stream of these deltas. Cut off, it ends after them without any end."""
    events = [_event({"delta": delta, "finish_reason": None}) for delta in deltas]
    if not is_cut:
        events.append(_event({"delta": {}, "finish_reason": finish_reason}))
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        events.append(_event(None, usage=usage))
        events.append(b"data: [DONE]\n\n")
    return Reply(events=tuple(events), is_cut=is_cut, is_endless=is_endless)


def failure(status: int, message: str, **details: Any) -> Reply:
    """An HTTP error in OpenAI's shape."""
    error = {"message": message, "type": "some_error", "code": None, **details}
    return Reply(status=status, body=json.dumps({"error": error}).encode())


def embeddings(
    *rows: list[float] | list[float | None], order: Sequence[int | None] | None = None
) -> Reply:
    """A reply of these vectors, with their numbers; `order` gives others."""
    numbers = range(len(rows)) if order is None else order
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in zip(numbers, rows, strict=True)
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    answer = {"object": "list", "data": data, "model": "scripted-embedder", "usage": usage}
    return Reply(body=json.dumps(answer).encode())


def garbage() -> Reply:
    """A reply that says it is JSON and is none."""
    return Reply(body=b'{"id": "chatcmpl-1", "choices": [')


@contextmanager
def running_server() -> Generator[OpenAIServer]:
    """Run a server in a thread; on exit it is closed, with all its connections."""
    httpd = _Httpd(("127.0.0.1", 0), _Handler)
    httpd.state = OpenAIServer(url=f"http://127.0.0.1:{httpd.server_address[1]}/v1")
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield httpd.state
    finally:
        httpd.shutdown()
        httpd.hang_up()
        httpd.server_close()
        thread.join()


class _Httpd(ThreadingHTTPServer):
    daemon_threads = False
    state: OpenAIServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sockets: set[socket.socket] = set()

    def hang_up(self) -> None:
        for sock in list(self.sockets):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was faster

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that the client resets is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each reply waits for the client's delayed ACK
    server: _Httpd

    def setup(self) -> None:
        super().setup()
        self.server.sockets.add(self.connection)
        self._count(1)

    def finish(self) -> None:
        self.server.sockets.discard(self.connection)
        super().finish()
        self._count(-1)

    def _count(self, step: int) -> None:
        state = self.server.state
        with state.changes:
            state.open_connections += step
            state.connections += max(step, 0)
            state.changes.notify_all()

    def do_POST(self) -> None:
        state = self.server.state
        state.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if state.answer is not None:
            reply = state.answer(state.bodies[-1])
        else:
            reply = state.replies.popleft() if len(state.replies) > 1 else state.replies[0]
        if reply.events is None:
            self._send_whole(reply)
        else:
            self._send_events(reply, reply.events)

    def _send_whole(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def _send_events(self, reply: Reply, events: tuple[bytes, ...]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while reply.is_endless:
            try:
                self._send_chunk(events[0])
            except OSError:
                self.server.state.is_left.set()
                self.close_connection = True
                return
        for event in events:
            self._send_chunk(event)
        if reply.is_cut:  # no last chunk: the client sees a body that is not complete
            self.close_connection = True
        else:
            self._send_chunk(b"")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet."""


def _event(choice: Object | None, **fields: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "scripted-1",
        "choices": [] if choice is None else [{"index": 0, **choice}],
        **fields,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
