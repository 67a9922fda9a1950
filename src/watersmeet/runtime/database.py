"""The parts of an open database that the runtime works with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from watersmeet import objectfiles, storage
from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.errors import error
from watersmeet.objectstores import ObjectPath
from watersmeet.runtime.clock import Clock
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.packfiles import PackFiles

MAX_PARALLELISM = 256
_PARALLELISM: Final = "PARALLELISM"


#: Names the columns of an operator of a circuit for messages; the operators that are given are shown as relations.
ColumnNames = Callable[[Circuit, Catalog, Mapping[str, Relation], str], Sequence[str]]


def positions(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:  # noqa: ARG001
    """The names that the operator itself has: c0, c1, …"""
    return [f.name for f in circuit.by_id[operator_id].schema]


class SentRequests:
    """What this process asks an object store for."""

    def __init__(self, layout: Layout) -> None:
        self._space = layout.root.space if isinstance(layout.root, ObjectPath) else ""
        self._counted = objectfiles.requests(self._space)

    def fresh(self) -> int:
        """How many requests it sent since the last call, for the files of the database; none for a directory."""
        before, self._counted = self._counted, objectfiles.requests(self._space)
        return self._counted - before


@dataclass(frozen=True)
class Database:
    """An open database. log: opened as its writer. catalog: gives the newest catalog.

    clock: gives the time of its epochs. column_names: how messages call columns. joins: the joins of each view, for one
    circuit and catalog (`limits`): they are asked for in every epoch.
    """

    layout: Layout
    log: CommitLog
    packs: PackFiles
    catalog: Callable[[], Catalog]
    clock: Clock = field(default_factory=Clock)
    column_names: ColumnNames = positions
    joins: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def requests(self) -> SentRequests:
        """What this process asks an object store for."""
        return SentRequests(self.layout)


def stored_parallelism(layout: Layout) -> int | None:
    """The number of buckets that the database was made with; None in a new one."""
    try:
        text = storage.read_file(layout.root / _PARALLELISM)
    except FileNotFoundError:
        return None
    try:
        return int(json.loads(text)["buckets"])
    except (ValueError, KeyError, TypeError) as cause:
        raise error("DATABASE_DAMAGED", "cannot read the file PARALLELISM of the database") from cause


def fix_parallelism(layout: Layout, wanted: int | None, default: int) -> int:
    """The number of buckets of the database: fixed by the first call for ever.

    wanted: what the user asks for, None for whatever it is (a new one: `default`). PARALLELISM_MISMATCH if the
    database has another one: the state is cut by it, so that only a rebuild changes it.
    """
    if wanted is not None and not 1 <= wanted <= MAX_PARALLELISM:
        raise error(
            "INVALID_PARAMETER", f"parallelism can't be {wanted}", hint=f"It must be between 1 and {MAX_PARALLELISM}."
        )
    stored = stored_parallelism(layout)
    if stored is None:
        with contextlib.suppress(FileExistsError):  # Another process was faster.
            storage.create_file(layout.root / _PARALLELISM, _text(wanted or default), durable=layout.durable)
        stored = stored_parallelism(layout)
    if wanted not in (None, stored):
        raise error(
            "PARALLELISM_MISMATCH",
            f"the database has parallelism {stored}, not {wanted}",
            detail="The state of its views is split into that many buckets.",
            hint=f"Connect with parallelism {stored} (or without), or with rebuild = True (watersmeet run "
            "--rebuild) to rebuild all state.",
        )
    assert stored is not None
    return stored


def store_parallelism(layout: Layout, buckets: int) -> None:
    """Notes another number of buckets, at the end of a rebuild."""
    storage.replace_file(layout.root / _PARALLELISM, _text(buckets), durable=layout.durable)


def _text(buckets: int) -> bytes:
    return (json.dumps({"buckets": buckets}) + "\n").encode()
