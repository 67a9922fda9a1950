"""The secrets of a database: a file each, which only the user of this process can read."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Final

from watersmeet import files
from watersmeet.errors import error
from watersmeet.store.layout import Layout

#: The bytes that the name of a secret may have as the name of a file.
_MAX_NAME: Final = 200
_ENDING: Final = ".json"


def create_secret(layout: Layout, name: str, value: str) -> bool:
    """Stores a secret; False if there is one of that name. INVALID_NAME."""
    path = _path(layout, name)
    try:
        files.create_file(path, layout.seal(path, value), durable=layout.durable, private=True)
    except FileExistsError:
        return False
    if layout.durable:
        files.sync_directory(layout.secrets)
    return True


def drop_secret(layout: Layout, name: str) -> None:
    """Deletes a secret."""
    files.discard(_path(layout, name))
    if layout.durable:
        files.sync_directory(layout.secrets)


def secret_names(layout: Layout) -> list[str]:
    """The names of all secrets, sorted."""
    found = [n for n in files.list_names(layout.secrets) if n.endswith(_ENDING) and not n.startswith(".")]
    return sorted(urllib.parse.unquote(n.removesuffix(_ENDING)) for n in found)


def _path(layout: Layout, name: str) -> Path:
    path = layout.secret(name)
    if not name or len(path.name) > _MAX_NAME:
        raise error("INVALID_NAME", f"a secret can't be called {name[:40]!r}", hint="Choose a shorter name.")
    return path
