"""Embedders of providers, by way of pydantic-ai: OpenAI and what speaks its protocol, Google, Cohere, more.

As for models (`providers.py`), HTTP connections belong to the event loop that opened them, so there is one
client for each loop. Nothing that a provider says gets into an error, since it may repeat the texts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pydantic_ai.embeddings import EmbeddingModel, infer_embedding_model
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.providers import Provider, infer_provider

from tenure.connections import Connections
from tenure.errors import EmbeddingError
from tenure.providers import ADVICE, naming_errors

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from tenure.embedding import Kind


class _Opened:
    """An embedding model together with the provider that has its HTTP client."""

    def __init__(self, name: str) -> None:
        self._providers: list[Provider[Any]] = []
        with naming_errors(name, "embedder"):
            self.model: EmbeddingModel = infer_embedding_model(
                name, provider_factory=self._provider
            )
        if _is_openai(self.model):
            for provider in self._providers:
                _keep_order(provider.client.embeddings, name)

    def _provider(self, name: str) -> Provider[Any]:
        self._providers.append(infer_provider(name))
        return self._providers[-1]

    async def __aenter__(self) -> _Opened:
        for provider in self._providers:
            await provider.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for provider in self._providers:
            await provider.__aexit__(None, None, None)


def _is_openai(model: EmbeddingModel) -> bool:
    """Whether it is of OpenAI's protocol; its module is imported only then."""
    module = sys.modules.get("pydantic_ai.embeddings.openai")
    return module is not None and isinstance(model, module.OpenAIEmbeddingModel)


def _keep_order(resource: Any, name: str) -> None:
    """Have a client of OpenAI's SDK return vectors by their `index`.

    pydantic-ai 2.68 takes them as they come and drops the numbers, so a server that answers out of order
    would give texts the vectors of others; this can go when it does not. The client is ours alone.
    """
    create = resource.create

    async def in_order(**request: Any) -> Any:
        response = await create(**request)
        numbers = {getattr(item, "index", None) for item in response.data}
        if len(numbers) == len(response.data) and None not in numbers:
            response.data.sort(key=attrgetter("index"))
        elif len(numbers) > 1:  # with one number for all, the server numbers nothing
            raise EmbeddingError(
                f"The embedder {name!r} did not number its vectors, each with a number of its own."
            )
        return response

    resource.create = in_order


class RemoteEmbedder:
    """A provider's embedding model, by `"provider:name"`."""

    threshold = None

    def __init__(self, name: str) -> None:
        """Find the model; nothing is sent yet.

        Raises:
            MissingExtraError: The provider's package is not installed.
            UnknownModelError: There is no such provider.
            UsageError: The provider needs a setting, such as an API key.
        """
        self.name = self.identity = name
        self._connections = Connections(_Opened(name), lambda: _Opened(name))

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> NDArray[np.float32]:
        """See `Embedder.embed`; the provider's SDK repeats a request that it may."""
        import numpy as np

        try:
            opened = await self._connections.model()
            readable = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
            result = await opened.model.embed(readable, input_type=kind)
        except EmbeddingError:
            raise
        except ModelHTTPError as exc:
            status = exc.status_code
            advice = ADVICE.get(
                status, "try again later" if status >= 500 else "change the request"
            )
            raise EmbeddingError(
                f"The embedder {self.name!r} answered with HTTP {status}; {advice}."
            ) from exc
        except Exception as exc:  # each SDK has its own
            raise EmbeddingError(
                f"The request to the embedder {self.name!r} failed with {type(exc).__name__}; try "
                "again, or see the error that caused this one."
            ) from exc
        return np.array(result.embeddings, np.float32)
