"""Files beside the commits: the writer's notes to other processes, and secrets.

Notes: what the writer tells other processes beside the commits, as JSON, most of it by relation id, in files.

Nothing depends on them.

The secrets of a database: a file each, which only the user of this process can read.
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import Place
from watersmeet.store.layout import Layout
from watersmeet.system.secretvalues import is_nameless, nameless


class Note:
    """One of them. Not thread-safe."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._path = layout.sources / name
        self._written = ""

    @property
    def is_written(self) -> bool:
        """Whether this process has written it."""
        return bool(self._written)

    def write(self, value: Mapping[str, Any]) -> None:
        """Writes what is new; never fails."""
        text = json.dumps(value, ensure_ascii=False, default=str)
        if text == self._written:
            return
        with contextlib.suppress(Error, OSError):
            storage.replace_file(self._path, text.encode(), durable=False)
            self._written = text

    def read(self) -> dict[str, Any]:
        """What the writer wrote last; empty if there is nothing to read."""
        try:
            found = json.loads(storage.read_file(self._path))
        except (Error, OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def discard(self) -> None:
        """Deletes what an earlier writer left."""
        storage.discard(self._path)


#: The bytes that the name of a secret may have as the name of a file.
_MAX_NAME: Final = 200

_ENDING: Final = ".json"


def create_secret(layout: Layout, name: str, value: str) -> bool:
    """Stores a secret; False if there is one of that name. INVALID_NAME."""
    path = _path(layout, name)
    try:
        storage.create_file(path, layout.seal(path, value), durable=layout.durable, private=True)
    except FileExistsError:
        return False
    if layout.durable:
        storage.sync_directory(layout.secrets)
    return True


def keep_secret(layout: Layout, value: str) -> str:
    """Stores a secret that no statement can name; gives its name."""
    name = nameless()
    create_secret(layout, name, value)
    return name


def nameless_secrets(layout: Layout) -> list[str]:
    """The names of the secrets that no statement can name."""
    return [name for name in _names(layout) if is_nameless(name)]


def drop_unused(layout: Layout, names: Iterable[str], catalog: str) -> None:
    """Deletes secrets that no statement can name, but for those to which the text of the catalog refers.

    names: those that there were before this writer took over: later ones may be of another that has taken over since.
    """
    for name in names:
        if name[1:] not in catalog:
            drop_secret(layout, name)


def drop_secret(layout: Layout, name: str) -> None:
    """Deletes a secret."""
    storage.discard(_path(layout, name))
    if layout.durable:
        storage.sync_directory(layout.secrets)


def secret_names(layout: Layout) -> list[str]:
    """The names of all secrets that statements can name, sorted."""
    return [name for name in _names(layout) if not is_nameless(name)]


def _names(layout: Layout) -> list[str]:
    found = [n for n in storage.list_names(layout.secrets) if n.endswith(_ENDING) and not n.startswith(".")]
    return sorted(urllib.parse.unquote(n.removesuffix(_ENDING)) for n in found)


def _path(layout: Layout, name: str) -> Place:
    path = layout.secret(name)
    if not name or len(path.name) > _MAX_NAME:
        raise error("INVALID_NAME", f"a secret can't be called {name[:40]!r}", hint="Choose a shorter name.")
    return path
