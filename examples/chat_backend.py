"""A chat service: every user has a conversation of their own, and replies are streamed.

    python examples/chat_backend.py
    curl -N localhost:8000/chat -H 'X-User-Id: ada' -d '{"message": "Hello!"}'
    curl localhost:8000/history -H 'X-User-Id: ada'

`POST /chat` answers with server-sent events. Each one is a line `data: ` and a JSON object:
`{"text": ...}` is a piece of the reply, `{"done": true}` says that the turn is stored, and
`{"error": ...}` says that it is not. Requests that make no sense get a 400 and `{"error": ...}`.

The user id comes from a header, so that the example stays short. A real service takes it from its login.
`create_app` is a factory: `uvicorn --app-dir examples --factory chat_backend:create_app` serves it, too.
"""

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tenure import Agent, ChatMemory, ModelError, RunStream, TenureError, open_store

log = logging.getLogger("chat_backend")
UNAVAILABLE = "The conversation cannot be reached. Please try again later."


class Events(StreamingResponse):
    """A run's events, as the client reads them. When the client leaves, the run is cancelled."""

    def __init__(self, stream: RunStream) -> None:
        super().__init__(_events(stream), media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stream:
            await super().__call__(scope, receive, send)


async def _events(stream: RunStream) -> AsyncIterator[str]:
    try:
        async for piece in stream.text():
            yield _event({"text": piece})
        yield _event({"done": True})
    except ModelError:
        log.warning("the model could not answer", exc_info=True)
        yield _event({"error": "The model could not answer. Please try again."})
    except Exception:  # the database, a wrong setting, a bug: what it was is for the operator
        log.exception("a run failed")
        yield _event({"error": UNAVAILABLE})


def _event(data: dict[str, object]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _session_id(request: Request) -> str:
    user_id = request.headers.get("X-User-Id", "").strip()
    if not user_id:
        raise HTTPException(400, "The header X-User-Id is missing.")
    return f"user:{user_id}"


async def _message(request: Request) -> str:
    try:
        body = await request.json()
    except ValueError:
        raise HTTPException(400, "The body is not JSON.") from None
    message = body.get("message") if isinstance(body, dict) else None
    if not isinstance(message, str) or not message.strip():
        raise HTTPException(400, 'The body must be {"message": "some text"}.')
    return message


async def _as_json(request: Request, exc: Exception) -> JSONResponse:
    if isinstance(exc, HTTPException):
        return JSONResponse({"error": exc.detail}, exc.status_code, exc.headers)
    log.error("a request failed", exc_info=exc)
    return JSONResponse({"error": UNAVAILABLE}, 503)


def create_app(model: object | None = None, store_url: str | None = None) -> Starlette:
    """Put the service together; what is not given comes from CHAT_MODEL and TENURE_STORE."""
    store = open_store(store_url or os.environ.get("TENURE_STORE", "sqlite:///chat.db"))
    agent = Agent(
        model=model or os.environ.get("CHAT_MODEL", "local"),
        system_prompt="You are a helpful assistant. Answer in a few sentences.",
        store=store,
        features=[ChatMemory().window_size(50)],
    )

    async def chat(request: Request) -> Events:
        session_id = _session_id(request)
        return Events(agent.run_stream(await _message(request), session_id))

    async def history(request: Request) -> JSONResponse:
        messages = await store.read(_session_id(request))
        return JSONResponse([{"role": m.role, "text": m.text} for m in messages])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await store.close()

    return Starlette(
        routes=[
            Route("/chat", chat, methods=["POST"]),
            Route("/history", history),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _as_json, TenureError: _as_json},
    )


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(create_app())
