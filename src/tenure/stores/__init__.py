"""Where conversations are kept. `base.py` is the contract; this file turns a URL into a driver.

memory://              in RAM, for as long as the process lives
sqlite:///chat.db      an SQLite file, relative to the working directory
sqlite:////var/chat.db an absolute path
...?durable=true       every append waits until the disk has it
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote
from weakref import WeakValueDictionary

from tenure.errors import InvalidValueError
from tenure.stores.base import Conversation, Store
from tenure.stores.inmemory import InMemoryStore

__all__ = ["Conversation", "InMemoryStore", "Store", "default_store_path", "open_store", "url_of"]

_open: Final[WeakValueDictionary[str, Store]] = WeakValueDictionary()
_lock = threading.Lock()


def open_store(url: str) -> Store:
    """Return the store of a URL. Equal URLs in one process share one store, until it is closed.

    Nothing is read or written yet: a file that cannot be opened shows on first use.

    Raises:
        InvalidValueError: The URL names no store.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("sqlite", "memory"):
        raise InvalidValueError(
            f"{url!r} names no store; write 'sqlite:///chat.db', 'sqlite:////absolute/chat.db' "
            "or 'memory://'."
        )
    path, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    durable = options.pop("durable", "false").lower()
    if options or durable not in ("true", "false") or (scheme == "memory" and query):
        raise InvalidValueError(f"{url!r} has an option that is not known; there is ?durable=true.")
    if scheme == "sqlite":
        if not path.startswith("/") or len(path) < 2:
            raise InvalidValueError(
                f"{url!r} names no file; write three slashes before a relative path "
                "(sqlite:///chat.db) and four before an absolute one."
            )
        path = str(Path(unquote(path[1:])).absolute())
    key = f"{scheme}:{path}:{durable}"
    with _lock:
        store = _open.get(key)
        if store is None or store.is_closed:
            store = InMemoryStore() if scheme == "memory" else _sqlite(path, durable == "true")
            _open[key] = store
        return store


def default_store_path() -> Path:
    """Return the file that the command line uses, in the user's data directory.

    The directory is made if it is not there.
    """
    from platformdirs import user_data_path

    return user_data_path("tenure", appauthor=False, ensure_exists=True) / "tenure.db"


def url_of(path: str | Path) -> str:
    """Return the URL of the SQLite store in this file."""
    return f"sqlite:///{quote(str(Path(path).absolute()))}"


def _sqlite(path: str, is_durable: bool) -> Store:
    from tenure.stores.sqlite import SQLiteStore

    return SQLiteStore(path, is_durable=is_durable)
