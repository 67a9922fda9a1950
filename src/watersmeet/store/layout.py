"""Where a database keeps what: every path inside it is made here, from names that can't leave it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from watersmeet.errors import error
from watersmeet.store import files

#: Changes whenever an older release could not read what this one writes.
DATABASE_FORMAT_VERSION: Final = 1

_DIRECTORIES: Final = ("catalog", "commits", "packs", "snapshots", "plans", "intents", "checkpoint", "dead", "readers")
_ID: Final = re.compile(r"[a-z]+[0-9]+\Z")
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*(\.[a-z]+)?\Z")


def check_id(relation_id: str) -> str:
    """`relation_id`, if it has the form of one (`t3`): INTERNAL_ERROR otherwise."""
    if not _ID.match(relation_id):
        raise error("INTERNAL_ERROR", f"not a relation id: {relation_id!r}")
    return relation_id


def check_name(name: str) -> str:
    """`name`, if it is safe as the name of a file of the store: DATABASE_DAMAGED otherwise (it was read somewhere)."""
    if not _NAME.match(name):
        raise error("DATABASE_DAMAGED", f"not a name of a file of the store: {name!r}")
    return name


class Layout:
    """The directory of one database.

    durable: whether what is written must survive a loss of power (False for temporary databases).
    create: make what is missing; otherwise DATABASE_FORMAT if there is no database at `root`.
    Raises DATABASE_FORMAT, with nothing touched, for a newer format and for a directory that is something else.
    """

    def __init__(self, root: Path | str, *, durable: bool = True, create: bool = True) -> None:
        self.root = Path(root).absolute()
        self.durable = durable
        self.commits = self.root / "commits"
        self.packs = self.root / "packs"
        self.snapshots = self.root / "snapshots"
        self.catalogs = self.root / "catalog"
        self.plans = self.root / "plans"
        self.intents = self.root / "intents"
        self.checkpoint = self.root / "checkpoint"
        self.readers = self.root / "readers"
        self.lock = self.root / "LOCK"
        self._format = self.root / "FORMAT"
        if not self._check_format():
            if not create:
                raise error("DATABASE_FORMAT", f"there is no Watersmeet database at {self.root}")
            self._create()
        elif create:
            self._make_directories()

    def commit(self, number: int) -> Path:
        """The manifest of commit `number`."""
        return self.commits / f"{number:012d}.json"

    def catalog(self, version: int) -> Path:
        """The catalog of that version."""
        return self.catalogs / f"{version:012d}.json"

    def pack(self, name: str) -> Path:
        """A pack or run file."""
        return self.packs / check_name(name)

    def snapshot(self, name: str) -> Path:
        """A data file of a snapshot."""
        return self.snapshots / check_name(name)

    def snapshot_manifest(self, number: int) -> Path:
        """The checkpoint that holds the content up to commit `number`."""
        return self.snapshots / f"{number:012d}.json"

    def plan(self, fingerprint: str) -> Path:
        """The compiled circuit with that fingerprint."""
        return self.plans / f"{check_name(fingerprint)}.json"

    def intent(self, epoch: int) -> Path:
        """What epoch `epoch` is to read."""
        return self.intents / f"{epoch:012d}.json"

    def dead(self, relation_id: str) -> Path:
        """The directory of the dead letters of a relation (not made here)."""
        return self.root / "dead" / check_id(relation_id)

    def _check_format(self) -> bool:
        """True if there is a database of a format that we know; False if there is room for one."""
        if self.root.exists() and not self.root.is_dir():
            raise error("DATABASE_FORMAT", f"{self.root} is not a directory")
        try:
            text = files.read_file(self._format)
        except FileNotFoundError:
            if self.root.exists() and files.list_names(self.root):
                raise error("DATABASE_FORMAT", f"{self.root} is not empty and holds no Watersmeet database",
                            hint="Choose a path that does not exist yet, or an empty directory.") from None
            return False
        try:
            version = int(json.loads(text)["format"])
        except (ValueError, KeyError, TypeError) as cause:
            raise error("DATABASE_DAMAGED", f"cannot read {self._format}") from cause
        if version > DATABASE_FORMAT_VERSION:
            raise error("DATABASE_FORMAT", f"the database at {self.root} has format {version}, newer than "
                        f"format {DATABASE_FORMAT_VERSION} of this release",
                        hint="Use the release of Watersmeet that wrote it, or a newer one. Nothing was changed.")
        return True

    def _create(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise files.failure(cause, self.root) from cause
        # FORMAT comes first: a directory with anything else but without it is not ours.
        text = json.dumps({"format": DATABASE_FORMAT_VERSION}) + "\n"
        files.replace_file(self._format, text.encode(), durable=self.durable)
        self._make_directories()

    def _make_directories(self) -> None:
        for name in _DIRECTORIES:
            try:
                (self.root / name).mkdir(exist_ok=True)
            except OSError as cause:
                raise files.failure(cause, self.root / name) from cause
        if self.durable:
            files.sync_directory(self.root)
