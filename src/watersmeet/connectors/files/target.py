"""The target `file`: a directory of Parquet, JSON or CSV files, each of which is there whole, once, or not at all.

    orders/
        day=2024-05-01/s12-00000001-000000000017-000000000250-0.parquet
        .watersmeet/owner                   which sink the directory belongs to
        .watersmeet/writers/00000001-00000003/   where the newest writer prepares files
        .watersmeet/commits/00000001-000000000017-000000.manifest

Rows are prepared in the writer's own directory. Then the manifest is created: that is the step in which they are
delivered. Only then the files are moved to their names. Whoever opens the target next moves what was left behind.

`files.writing` shuts out earlier writers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import Connector, Delivery, Place, SinkBatch, Target, Unavailable
from watersmeet.connectors.files.writing import (
    FILE_SPECS,
    RowFiles,
    Writers,
    check_directory,
    flush,
    is_after,
    place_of,
    stem_of,
    unavailable,
)
from watersmeet.errors import error
from watersmeet.system import files
from watersmeet.system.process import fault

_STATE: Final = ".watersmeet"
_PATH: Final = ("path", "posix_fs.root", "fs.path")
SINK_OPTIONS: Final = OptionSet(
    "file of sinks", (OptionSpec("path", "The directory.", aliases=_PATH[1:], is_needed=True), *FILE_SPECS)
)


class FileTarget:
    """See `base.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._files = RowFiles(delivery, SINK_OPTIONS)
        self._root = _root(delivery)
        self._owner = {"database": database_id, "sink": delivery.target_id}
        self._name = delivery.target_id
        self._state = self._root / _STATE
        self._writers = Writers(self._root, self._state)
        self._generation = 0
        self._newest: Place | None = None
        self._has_older = False

    def open(self, generation: int) -> Place | None:
        with unavailable(self._root):
            self._claim_directory()
            self._writers.enter(generation)
            fault("files.entered")
            self._generation = generation
            self._writers.shut_out()
            fault("files.fenced")
            self._finish()
            manifests = self._writers.manifests()
            self._newest = place_of(self._writers.manifest(manifests[-1])) if manifests else None
            if self._newest is not None and self._newest.generation > generation:
                raise self._writers.fenced()
            self._has_older = bool(manifests) and int(manifests[0][:8]) < generation
            self._remove_generations()
            return self._newest

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        wanted = [p for p in batches if is_after(p.place, self._newest)]
        if not wanted:
            return
        own = self._writers.own
        with unavailable(self._root), self._writers.shut_out_as_error():
            staged = self._stage(stem_of(wanted[-1].place), [self._files.rows(p) for p in wanted])
            fault("files.staged")
            manifest = self._writers.commit(wanted[-1], {"files": staged})
            self._newest = wanted[-1].place
            self._publish(manifest, own)
            fault("files.published")
            files.discard(own / f"{stem_of(wanted[-1].place)}.manifest")
            self._remove_generations()

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _claim_directory(self) -> None:
        """CONNECTOR_OPTION if the directory belongs to another sink."""
        self._writers.make_directories()
        owner = self._state / "owner"
        with contextlib.suppress(FileExistsError):
            files.create_file(owner, json.dumps(self._owner).encode(), durable=True)
        if json.loads(files.read_file(owner)) != self._owner:
            raise error(
                "CONNECTOR_OPTION",
                f'path "{self._root}" belongs to another sink, or to one that was dropped',
                hint=f"Name another directory, or delete this one with its {_STATE}.",
            )

    def _finish(self) -> None:
        """Moves the files of earlier writers that are delivered to their names, and removes the others."""
        for left in self._writers.left():
            for stem in sorted({n.rpartition(".")[0].split("+")[0] for n in files.list_names(left)}):
                name = f"{stem}.manifest"
                if files.exists(self._writers.commits / name):
                    self._publish(self._writers.manifest(name), left)
            fault("files.finished")
            shutil.rmtree(left)

    def _publish(self, manifest: dict[str, Any], staged: Path) -> None:
        """Moves files to their names. Those that are no longer in `staged` have been moved before."""
        touched = set()
        for i, file in enumerate(manifest["files"]):
            path = self._root / file["name"]
            source = staged / file["staged"]
            if not source.exists():
                if not staged.exists():
                    raise Unavailable(f"{staged} was removed")
                continue
            files.make_directory(path.parent)
            os.rename(source, path)
            touched |= {path.parent, *path.parent.relative_to(self._root).parents}
            if i == 0:
                fault("files.first published")
        for directory in touched:
            files.sync_directory(self._root / directory)

    def _remove_generations(self) -> None:
        """Removes what generations before the newest one have delivered: it begins with the whole content."""
        if self._newest is None or self._newest.generation < self._generation or not self._has_older:
            return
        for name in self._writers.manifests():
            if int(name[:8]) >= self._generation:
                break
            files.remove_files(self._root / f["name"] for f in self._writers.manifest(name)["files"])
            files.discard(self._writers.commits / name)
            fault("files.removed")
        self._has_older = False

    def _stage(self, stem: str, tables: list[pa.Table]) -> list[dict[str, Any]]:
        """Writes the rows in the writer's directory; the files with their names."""
        own = self._writers.own
        staged: list[dict[str, Any]] = []
        for final, piece in self._files.pieces(f"{self._name}-{stem}", pa.concat_tables(tables)):
            name = f"{stem}+{len(staged)}.staged"
            files.discard(own / name)
            with (own / name).open("xb") as out:
                self._files.write(out, piece)
            flush(own / name)
            staged.append({"name": final, "staged": name, "rows": len(piece)})
        files.sync_directory(own)
        return staged


def _root(delivery: Delivery) -> Path:
    """The directory. CONNECTOR_OPTION."""
    path = next((delivery.connector[name] for name in _PATH if delivery.connector.get(name)), None)
    if path is None:
        raise error("CONNECTOR_OPTION", "connector file needs the option path", hint="Add path = '<directory>'.")
    return Path(os.path.abspath(os.path.expanduser(path)))


def _check(delivery: Delivery) -> None:
    FileTarget(delivery, "")
    check_directory(_root(delivery))


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> Target:
    del stopping
    return FileTarget(delivery, database_id)


CONNECTOR: Final = Connector(_check, _open)
