"""Catalogs on disk: one file a version, never changed. The one that the newest commit names counts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Final

from watersmeet.catalog import Catalog
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout

#: Older versions than these are deleted; a reader that is between a commit and its catalog still finds its own.
_KEPT_VERSIONS: Final = 8
_NAME: Final = re.compile(r"([0-9]{12})-([0-9]+)\.json\Z")


@contextlib.contextmanager
def saving(layout: Layout, log: CommitLog, catalog: Catalog) -> Iterator[str]:
    """Stores `catalog`, and gives its name for the commit that is made inside the block, by which it counts.

    If there is no such commit, nothing is left. Its version must be above all that this writer tried.
    """
    path = layout.catalog(f"{catalog.version:012d}-{log.writer}")
    try:
        storage.create_file(path, layout.seal(path, catalog.to_json()), durable=layout.durable)
    except FileExistsError as cause:
        raise error("INTERNAL_ERROR", f"catalog version {catalog.version} exists") from cause
    counts = False
    try:
        if layout.durable:
            storage.sync_directory(layout.catalogs)
        try:
            yield path.stem
        finally:
            counts = catalog_name(log) == path.stem
    finally:
        if not counts:
            storage.discard(path)
    with contextlib.suppress(Error):  # They take little room, and the next one tries again.
        _remove(layout, catalog.version - _KEPT_VERSIONS)


def save_catalog(layout: Layout, log: CommitLog, catalog: Catalog) -> None:
    """Stores `catalog` and makes it count by a commit of its own; when it raises, the catalog before is the newest."""
    with saving(layout, log, catalog) as name:
        log.append(catalog_commit(catalog, name))


def catalog_commit(catalog: Catalog, name: str) -> Commit:
    """The commit by which `catalog` counts, which is stored as `name`."""
    return Commit("catalog", time_us=time.time_ns() // 1000, catalog=name, follows=catalog.follows_epochs)


def catalog_name(log: CommitLog) -> str:
    """What the newest commit calls the catalog; "" in a new database."""
    while head := log.head():
        try:
            return log.read(head).catalog
        except Error:
            if log.head(anew=True) == head:  # otherwise the clean-up was faster
                raise
    return ""


def load_catalog(layout: Layout, log: CommitLog) -> tuple[Catalog, str]:
    """The newest catalog and its name; an empty one in a new database. DATABASE_DAMAGED if it can't be read."""
    while name := catalog_name(log):
        path = layout.catalog(name)
        try:
            return Catalog.from_json(layout.unseal(path)), name
        except FileNotFoundError as cause:
            log.head(anew=True)
            if catalog_name(log) == name:
                raise error("DATABASE_DAMAGED", f"catalog {path.name} is missing from {path.parent}") from cause
            continue  # Overtaken by the writer: look again.
        except (KeyError, TypeError, IndexError, ValueError) as cause:
            raise error("DATABASE_DAMAGED", f"catalog/{path.name} is not a catalog") from cause
    return Catalog(), ""


def remove_uncommitted(layout: Layout, log: CommitLog) -> None:
    """Deletes what writers before this one stored and did not commit."""
    committed = int(catalog_name(log).partition("-")[0] or 0)
    found = [m for n in storage.list_names(layout.catalogs) if (m := _NAME.match(n))]
    storage.remove_files(layout.catalogs / m.string for m in found if int(m[1]) > committed and int(m[2]) < log.writer)


def _remove(layout: Layout, upto: int) -> None:
    """Deletes the catalogs of versions up to `upto`."""
    found = [m for n in storage.list_names(layout.catalogs) if (m := _NAME.match(n))]
    storage.remove_files(layout.catalogs / m.string for m in found if int(m[1]) <= upto)
