"""Catalogs on disk: one file a version, the newest counts."""

from __future__ import annotations

import contextlib
from typing import Final

from watersmeet.catalog import Catalog
from watersmeet.errors import Error, error
from watersmeet.store import files
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import sealed, unsealed

#: Older versions than these are deleted; a reader that is between listing and reading still finds its own.
_KEPT_VERSIONS: Final = 8


def save_catalog(layout: Layout, catalog: Catalog, *, private: bool = False) -> None:
    """Stores `catalog` under its version, which must be new; when it raises, the version before is the newest. private: it has passwords."""
    try:
        files.create_file(layout.catalog(catalog.version), sealed(catalog.to_json()), durable=layout.durable, private=private)
    except FileExistsError as cause:
        raise error("INTERNAL_ERROR", f"catalog version {catalog.version} exists") from cause
    if layout.durable:
        try:
            files.sync_directory(layout.catalogs)
        except Error:
            files.discard(layout.catalog(catalog.version))
            raise
    with contextlib.suppress(Error):  # They take little room, and the next one tries again.
        files.remove_files(layout.catalogs / n for n in files.list_names(layout.catalogs)[:-_KEPT_VERSIONS])


def catalog_version(layout: Layout) -> int:
    """The newest version; 0 if there is none."""
    names = files.list_names(layout.catalogs)
    return int(names[-1].removesuffix(".json")) if names else 0


def load_catalog(layout: Layout) -> Catalog:
    """The newest catalog, an empty one in a new database. DATABASE_DAMAGED if it can't be read."""
    while version := catalog_version(layout):
        path = layout.catalog(version)
        try:
            return Catalog.from_json(unsealed(files.read_file(path), path.name))
        except FileNotFoundError:
            continue  # Overtaken by the writer: look again.
        except (KeyError, TypeError, IndexError) as cause:
            raise error("DATABASE_DAMAGED", f"{path.name} is not a catalog") from cause
    return Catalog()
