"""What targets of files have in common: one writer at a time, and manifests, which say what is delivered.

    .watersmeet/writers/00000001-00000003/   where the newest writer prepares files
    .watersmeet/commits/00000001-000000000017-000000.manifest

A writer is shut out by renaming its directory: everything that it does later goes through that name, and fails. So it
doesn't matter where it was stopped, and for how long.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from watersmeet import files
from watersmeet.errors import Error, error
from watersmeet.faults import fault
from watersmeet.sinks.base import Place, Portion, Unavailable


class Writers:
    """The writers of a target. root: what the target is, for messages. state: the directory of what it knows.

    own: the directory of this writer, after `enter`.
    """

    def __init__(self, root: Path, state: Path) -> None:
        self._root = root
        self.commits = state / "commits"
        self._writers = state / "writers"
        self.own = self._writers

    def make_directories(self) -> None:
        """Makes what is not there yet."""
        for directory in (self.commits, self._writers):
            files.make_directory(directory)

    def enter(self, generation: int) -> None:
        """Makes a directory of this writer alone, with the highest number. WRITER_FENCED by a newer generation."""
        while True:
            numbers = [_number(n) for n in files.list_names(self._writers)]
            generations = [g for g, _ in numbers] + [int(n[:8]) for n in self.manifests()[-1:]]
            if max(generations, default=0) > generation:
                raise self.fenced()
            self.own = self._writers / f"{generation:08}-{max((n for _, n in numbers), default=0) + 1:08}"
            try:
                self.own.mkdir()
            except FileExistsError:
                continue
            # Of two that came at the same time, one sees the other here.
            if max(map(_rank, files.list_names(self._writers))) > _rank(self.own.name):
                raise self.fenced()
            return

    def shut_out(self) -> None:
        """After this no earlier writer can do anything."""
        mine = _rank(self.own.name)
        for name in files.list_names(self._writers):
            if _rank(name) < mine and not name.endswith(".out"):
                with contextlib.suppress(FileNotFoundError):  # another one that was opened later has done so
                    os.rename(self._writers / name, self._writers / f"{name}.out")
        if not self.own.exists():
            raise self.fenced()

    def left(self) -> list[Path]:
        """The directories of writers that are shut out."""
        return [self._writers / n for n in files.list_names(self._writers) if n.endswith(".out")]

    def manifests(self) -> list[str]:
        """The names of all manifests, the newest last."""
        return files.list_names(self.commits)

    def manifest(self, name: str) -> dict[str, Any]:
        """What a manifest says."""
        found: dict[str, Any] = json.loads(files.read_file(self.commits / name))
        return found

    def commit(self, portion: Portion, content: dict[str, Any]) -> dict[str, Any]:
        """Makes the manifest of everything up to a portion, which is the step in which that is delivered; the manifest.

        WRITER_FENCED.
        """
        place = dict(zip(Place._fields, portion.place, strict=True))
        manifest = {**place, "time_us": portion.time_us, **content}
        prepared = self.own / f"{stem_of(portion.place)}.manifest"
        files.discard(prepared)
        files.create_file(prepared, json.dumps(manifest).encode(), durable=True)
        fault("files.prepared")
        try:
            os.link(prepared, self.commits / prepared.name)
        except FileExistsError:
            raise self.fenced() from None
        fault("files.committed")
        files.sync_directory(self.commits)
        return manifest

    @contextlib.contextmanager
    def shut_out_as_error(self) -> Iterator[None]:
        """WRITER_FENCED for what failed because the writer's directory is no longer there."""
        own = self.own
        try:
            yield
        except (OSError, Error) as cause:
            if isinstance(cause, Error) and cause.condition == "WRITER_FENCED":
                raise
            if self._writers.is_dir() and not own.exists():
                raise self.fenced() from cause
            raise

    def fenced(self) -> Error:
        """WRITER_FENCED."""
        return error(
            "WRITER_FENCED",
            f'another process delivers to "{self._root}" now',
            hint="Nothing is lost: it goes on where this one was.",
        )


@contextlib.contextmanager
def unavailable(target: Path | str) -> Iterator[None]:
    """Unavailable for what the system refuses, with the target and the reason: no space is left, say."""
    try:
        yield
    except Unavailable:
        raise
    except OSError as cause:
        raise Unavailable(f"{target} can't be written: {cause.strerror or cause}") from cause
    except Error as cause:
        if cause.condition in ("DISK_FULL", "DATABASE_ACCESS"):
            raise Unavailable(f"{target} can't be written: {cause.message}") from cause
        raise


def flush(path: Path) -> None:
    """Sees to it that a file's content survives a loss of power. OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_after(place: Place, newest: Place | None) -> bool:
    """Whether a place comes after the newest one that is delivered."""
    return newest is None or place[:3] > newest[:3]


def stem_of(place: Place) -> str:
    """The name of a place's manifest, without its end; in the order of places."""
    return f"{place.generation:08}-{place.commit:012}-{place.rows:012}"


def place_of(manifest: dict[str, Any]) -> Place:
    """The place that a manifest is of."""
    return Place(manifest["generation"], manifest["commit"], manifest["rows"], manifest["last"])


def check_directory(root: Path) -> None:
    """CONNECTOR_OPTION for a directory that can't be written, or made."""
    parent = root
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        reason = "Permission denied" if parent.is_dir() else "Not a directory"
        raise error("CONNECTOR_OPTION", f'path "{root}" can\'t be written: {reason}')


def _number(name: str) -> tuple[int, int]:
    """(generation, number) of a writer's directory."""
    generation, _, number = name.removesuffix(".out").partition("-")
    return int(generation), int(number)


def _rank(name: str) -> tuple[int, int]:
    """Writers of a higher rank shut out those of a lower one."""
    generation, number = _number(name)
    return number, generation
