"""Backfill: a new view gets its history in bounded pieces, from the content as it is at the frontier.

Progress is JSON that travels in the frontier of the commits, so it is in step with the state whatever happens.
What the database stores comes from the newest checkpoint and the commits after it: tables, and views (and connectors'
tables) that are complete, so that nothing below them is computed again. Sources read what they gave before once more.
Smaller relations come first, so that large ones find their partners. Before that, arrangements that live views keep and
the new ones read tell what they hold, by ranges of key hashes: nothing of it is read or built again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from watersmeet.catalog import Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import (
    Arrange,
    ArrivalAsofJoin,
    ArrivalJoin,
    AsofJoin,
    Cut,
    Join,
    Operator,
    Scan,
    TemporalJoin,
    Versions,
)
from watersmeet.planner.distribution import Placement, key_columns
from watersmeet.runtime.database import Database
from watersmeet.runtime.inputs import commit_slices
from watersmeet.sources.base import Slice, Source
from watersmeet.store.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from watersmeet.store.manifests import Frontier


@dataclass(frozen=True)
class Progress:
    """How far a backfill is.

    views: what it fills. rebuild: it makes the whole state anew instead; `before` is then the fingerprint of the
    circuit whose state is in use until it is through. checkpoint: number of the checkpoint that
    it starts from, 0 for none. transaction: the last commit of the tables that it reads. head: the same of what the
    circuit writes. stored: the relations written by the circuit that are read from what is stored. parts: in how many
    epochs arrangements of live views tell what they keep, before anything is read. part: the next of them.
    relations: what is left to read, in order. cursor: where in the first of them (None: its beginning).
    started: False before its first epoch.
    """

    views: tuple[str, ...]
    checkpoint: int
    transaction: int
    head: int
    stored: tuple[str, ...]
    relations: tuple[str, ...]
    cursor: Any = None
    part: int = 0
    parts: int = 0
    started: bool = False
    rebuild: bool = False
    before: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes the same progress."""
        return {
            "views": self.views,
            "checkpoint": self.checkpoint,
            "transaction": self.transaction,
            "head": self.head,
            "stored": self.stored,
            "relations": self.relations,
            "cursor": self.cursor,
            "part": self.part,
            "parts": self.parts,
            "started": self.started,
            "rebuild": self.rebuild,
            "before": self.before,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Progress:
        """The inverse of `to_json`."""
        return Progress(**{**value, **{n: tuple(value[n]) for n in ("views", "stored", "relations")}})


@dataclass(frozen=True)
class Piece:
    """Slices of one epoch, and the progress after it: None if that was the last one."""

    slices: tuple[Slice, ...]
    after: Progress | None
    more: bool


def begin(
    db: Database,
    views: tuple[str, ...],
    relations: Iterable[Relation],
    frontier: Frontier,
    *,
    complete: frozenset[str] = frozenset(),
    first: frozenset[str] = frozenset(),
    parts: int = 0,
    rebuild: bool = False,
    before: str = "",
) -> Progress:
    """The beginning of a backfill from `relations` as they are at `frontier`.

    complete: those written by the circuit that are read as the newest epoch left them. first: those that rows of others
    look up, so that they have to be there before. parts: as in `Progress`.
    """
    checkpoint = newest_checkpoint(db.layout, db.log)
    # A source that gave nothing yet has no history.
    read = [r for r in relations if r.id in complete or not r.connector or r.id in frontier.sources]
    head = db.log.head()
    rows = _stored_rows(db, checkpoint, head)
    # Sources last: what they give is usually the large, append-only side.
    order = sorted(read, key=lambda r: (r.id not in first, bool(r.connector), rows.get(r.id, 0), r.id))
    stored = tuple(r.id for r in order if r.id in complete)
    return Progress(
        views,
        checkpoint.moment.head,
        frontier.transaction,
        head,
        stored,
        tuple(r.id for r in order),
        parts=parts,
        rebuild=rebuild,
        before=before,
    )


@dataclass(frozen=True)
class Reach:
    """What a backfill runs: the operators `active`, `told` among them. given, told: as in `Intent`."""

    active: frozenset[str]
    given: dict[str, tuple[tuple[int, ...], ...]]
    told: frozenset[str]


def reach(circuit: Circuit, views: Iterable[str], complete: Iterable[str], late: Mapping[str, int]) -> Reach:
    """What it takes to fill `views` where the content of the relations `complete` can be read.

    late: by relation, how many rows were left out as late. Arrangements of other views are told, unless they lack rows
    that a join shows, or forget rows.
    """
    filled, stored = set(views), set(complete)
    placement = Placement(circuit.by_id)
    ends: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {}
    for sink in circuit.sinks:
        top = circuit.by_id[sink.inputs[0]]
        if sink.relation_id not in stored or (isinstance(top, Scan) and top.late == late.get(top.relation_id, 0)):
            continue  # a copy of what its relation has
        distribution = placement.distribution(top.id)
        keys = key_columns(distribution) if distribution is not None and all(distribution) else None
        # Nobody relies on where the rows are that lie anywhere, or by a key that is gone (`Lowering`): they are spread.
        ends.setdefault(
            top.id, (sink.relation_id, keys if keys is not None else tuple((i,) for i in range(len(top.schema))))
        )
    tops = {s.id for s in circuit.sinks if s.relation_id in filled}
    later = {o.id for o in circuit.operators if isinstance(o, Cut) and o.keeps == "after"}  # history gives them nothing
    looked_up = {i for o in circuit.operators for i in _first(o)}
    live = circuit.upstream({s.id for s in circuit.sinks if s.relation_id not in filled})
    history = {o.id for o in circuit.operators if isinstance(o, Versions) and o.id in live}  # nothing else has it
    told = {o.id for o in circuit.operators if isinstance(o, Arrange) and o.id in live and o.keeps_all} | history
    if any(_first(circuit.by_id[i]) for i in circuit.upstream(tops, ends.keys())):
        told = told & looked_up | history  # what looks rows up has to come after all of them
    while True:
        reached = circuit.upstream(tops, ends.keys() | told | later)
        joins = [o for o in circuit.operators if isinstance(o, (AsofJoin, Join)) and o.id in reached - ends.keys()]
        lacking = {i for join in joins for i in _showing_null_keys(join, circuit)} & told
        if not lacking:
            break
        told -= lacking
    return Reach(
        frozenset(reached - ends.keys()),
        dict(ends[o] for o in sorted(reached & ends.keys())),
        frozenset(told & reached),
    )


def looked_up_first(circuit: Circuit, scope: Reach, *, live: bool = False) -> frozenset[str]:
    """The relations that have to be read before others, because rows of these look theirs up when they come.

    live: without those whose rows are found later, too: outer joins that are decided on arrival never wait for a side.
    """
    joins = [
        i
        for o in circuit.operators
        if o.id in scope.active and not (live and isinstance(o, ArrivalJoin) and o.join_kind in ("left", "right"))
        for i in _first(o)
    ]
    tops = {circuit.by_id[s.inputs[0]].id: s.relation_id for s in circuit.sinks if s.relation_id in scope.given}
    reached = circuit.upstream(set(joins), tops.keys()) if joins else set()
    return frozenset(
        [*(o.relation_id for o in circuit.scans if o.id in reached), *(i for t, i in tops.items() if t in reached)]
    )


def _first(op: Operator) -> tuple[str, ...]:
    """The inputs of an operator whose rows have to be there before those of the others, which are decided when they
    come.
    """
    if isinstance(op, ArrivalJoin):
        return {"right": op.inputs[:1], "full": ()}.get(op.join_kind, op.inputs[1:])
    return op.inputs[1:] if isinstance(op, (ArrivalAsofJoin, TemporalJoin)) else ()


def _showing_null_keys(join: AsofJoin | Join, circuit: Circuit) -> Iterator[str]:
    """The inputs of which rows with a NULL in the key come out, though no arrangement keeps them."""
    for arrangement, kinds in zip(join.inputs, (("left", "full", "anti"), ("right", "full")), strict=True):
        op = circuit.by_id[arrangement]
        if (
            join.join_kind in kinds
            and isinstance(op, Arrange)
            and any(op.schema[k].nullable and not safe for k, safe in zip(op.keys, op.null_safe, strict=True))
        ):
            yield arrangement


def next_piece(db: Database, progress: Progress, sources: Mapping[str, Source], rows: int, size_bytes: int) -> Piece:
    """The next piece, of at most so much if possible: as many relations as fit."""
    if progress.part < progress.parts:
        more = bool(progress.relations) or progress.part + 1 < progress.parts
        return Piece((), replace(progress, part=progress.part + 1, started=True) if more else None, more)
    slices: list[Slice] = []
    relations = list(progress.relations)
    cursor = progress.cursor
    while relations and rows > 0 and size_bytes > 0:
        relation_id = relations[0]
        if relation_id in sources and relation_id not in progress.stored:
            history = sources[relation_id].history(cursor, rows, size_bytes)
            found, cursor = list(history.slices), history.cursor
        else:
            found, cursor = _stored_slices(db, progress, relation_id, cursor, rows, size_bytes)
        slices += found
        rows -= sum(int(s["rows"]) for s in found)
        size_bytes -= sum(int(s["bytes"]) for s in found)
        if cursor is not None:
            break
        relations.pop(0)
    after = replace(progress, relations=tuple(relations), cursor=cursor, started=True) if relations else None
    return Piece(tuple(slices), after, after is not None)


def hold_at(db: Database, progress: Progress) -> int:
    """The commit above which (and the checkpoint at which) nothing may be deleted while the backfill runs."""
    return load_checkpoint(db.layout, progress.checkpoint).moment.transaction if progress.checkpoint else 0


def _stored_rows(db: Database, checkpoint: Checkpoint, upto: int) -> dict[str, int]:
    """By relation, about the rows that a backfill up to commit `upto` reads."""
    rows = {i: s.stored_rows for i, s in checkpoint.relations.items()}
    for number in range(checkpoint.moment.transaction + 1, upto + 1):
        for relation_id, change in db.log.read(number).relations.items():
            rows[relation_id] = rows.get(relation_id, 0) + sum(b.rows for b in change.blobs)
    return rows


def _stored_slices(
    db: Database, progress: Progress, relation_id: str, cursor: Any, rows: int, size_bytes: int
) -> tuple[list[Slice], Any]:
    """(slices, where to go on). cursor: ["file", number] in the snapshot, or ["commit", number, blob]."""
    slices: list[Slice] = []
    place, upto = _start(db, progress, relation_id) if cursor is None else (list(cursor), 0)
    if place[0] == "file":
        checkpoint = load_checkpoint(db.layout, progress.checkpoint)
        snapshot = checkpoint.relations[relation_id]
        upto = snapshot.upto
        data = [f for level in snapshot.levels for f in level.files]
        for number in range(place[1], len(data)):
            file = data[number]
            if slices and (rows < file.rows or size_bytes < file.size_bytes):
                return slices, ["file", number]
            slices.append(
                {
                    "kind": "snapshot",
                    "relation": relation_id,
                    "rows": file.rows,
                    "bytes": file.size_bytes,
                    "file": [file.name, file.rows, file.size_bytes],
                }
            )
            rows -= file.rows
            size_bytes -= file.size_bytes
        place = ["commit", upto + 1, 0]
    tables = frozenset([relation_id])
    last = progress.head if relation_id in progress.stored else progress.transaction
    for number in range(place[1], last + 1):
        first = place[2] if number == place[1] else 0
        for blob, piece in enumerate(commit_slices(db.log.read(number), tables, first), first):
            if slices and (rows < piece["rows"] or size_bytes < piece["bytes"]):
                return slices, ["commit", number, blob]
            slices.append(piece)
            rows -= piece["rows"]
            size_bytes -= piece["bytes"]
    return slices, None


def _start(db: Database, progress: Progress, relation_id: str) -> tuple[list[Any], int]:
    if progress.checkpoint:
        checkpoint = load_checkpoint(db.layout, progress.checkpoint)
        if relation_id in checkpoint.relations:
            return ["file", 0], 0
        # It was made after the checkpoint: all its changes are in later commits.
        return ["commit", checkpoint.moment.transaction + 1, 0], 0
    return ["commit", 1, 0], 0
