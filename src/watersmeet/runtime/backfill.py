"""State from history: the pieces in which new views read the history, and the states that can't be rebuilt from it.

A backfill reads the content at the frontier in bounded pieces. Its progress (`Backfill`) is part of the frontier of
commits, so it always agrees with the state. Tables, complete views and connectors' tables are read from the newest
checkpoint and later commits; sources read their history again. Smaller relations are read first, so that rows of large
ones find their matches. Arrangements shared with live views are replayed before that, by ranges of key hashes.

Where nothing depends on the moment at which rows arrive, live views run between the pieces. The new views then have
their own copies of shared arrangements until they are complete. After the content, the changes that were committed
meanwhile are read in rounds; live views wait for the last, small one only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watersmeet.catalog import ARRIVAL, MaterializedView, Relation
from watersmeet.catalog import Source as CatalogSource
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Role, StoredContent
from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    ArrivalAsofJoin,
    ArrivalJoin,
    AsofJoin,
    ChangeLog,
    Constant,
    Cut,
    DynamicFilter,
    Exchange,
    Join,
    LateRowFilter,
    Map,
    MultiJoin,
    Operator,
    Records,
    Scan,
    Sink,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Versions,
    Window,
)
from watersmeet.connectors.base.sources import Source
from watersmeet.errors import Error, OperationalError, error
from watersmeet.runtime.engine import Database
from watersmeet.runtime.eventtimes import follows_clock
from watersmeet.runtime.inputs import blob_slice, commit_slices, connected
from watersmeet.store.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from watersmeet.store.manifests import Backfill, Commit, Filling, Frontier, Progress, Purpose
from watersmeet.values.slices import ChangeSlice, Slice


@dataclass(frozen=True)
class Piece:
    """The slices of one epoch. after: the progress after it, None at the end. lost: for each relation, the part of its
    history that no longer exists. rows: the number of rows.
    """

    slices: tuple[Slice, ...]
    after: Backfill | None
    more: bool
    lost: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0


@dataclass(frozen=True)
class Contents:
    """The contents from which a backfill begins. checkpoint: the number of the newest checkpoint. head: the newest
    commit. rows: the approximate number of rows of each relation.
    """

    checkpoint: int
    head: int
    rows: Mapping[str, int]

    def rows_of(self, relations: Iterable[Relation]) -> int:
        """The approximate number of rows of some relations."""
        return sum(self.rows.get(r.id, 0) for r in relations)


def present_contents(db: Database) -> Contents:
    """The contents as of the newest commit. The checkpoint must be pinned."""
    checkpoint, head, last = newest_checkpoint(db.layout, db.log), db.log.head(), db.log.last_epoch()
    read = {} if last is None else {i: total.rows for i, total in last.metrics.totals.items()}
    return Contents(checkpoint.moment.head, head, {**read, **_stored_rows(db, checkpoint, head)})


#: The operators whose output depends only on the present rows of their inputs.
_TIMELESS: Final = (
    Aggregate, Arrange, AsofJoin, Constant, DynamicFilter, Exchange, Join, Map, MultiJoin, Scan, Sink, TopN, Union,
    Unnest, Window,
)  # fmt: skip


def can_run_beside(
    circuit: Circuit,
    fill: Fill,
    relations: Iterable[Relation],
    complete: Collection[str],
    late: Mapping[str, int],
) -> bool:
    """Whether live views can run between the pieces of a fill: its operators depend only on the present rows, and on
    the time at its end, and no state of live views lacks rows that its copy would read. relations: those that it reads.
    complete: as in `begin`. late: as in `reach`.
    """
    copied = (circuit.by_id[i] for i in fill.having("copied"))
    if any(isinstance(o, Scan) and o.late != late.get(o.relation_id, 0) for o in copied):
        return False
    read = [r for r in relations if r.id not in complete]
    return not any(ARRIVAL in r.defaults.values() for r in read if r.connector) and all(
        is_timeless(circuit.by_id[i]) for i in fill.roles
    )


def is_timeless(operator: Operator) -> bool:
    """Whether the output depends only on the present rows and, at the end, on the time.

    Watermarks are unknown until the end of a fill. The time of epochs is known, and rises while history is read: a
    filter then only deletes rows that it would also delete at the end.
    """
    if isinstance(operator, TimeFilter):
        return not operator.stays
    if isinstance(operator, Scan):
        return not operator.ordered
    return type(operator) in _TIMELESS and not follows_clock(operator)


def begin(
    db: Database,
    purpose: Purpose,
    relations: Iterable[Relation],
    frontier: Frontier,
    contents: Contents,
    *,
    complete: frozenset[str] = frozenset(),
    first: frozenset[str] = frozenset(),
    beside: bool = False,
) -> Backfill:
    """The beginning of a backfill from `relations` at `frontier`. contents: the present ones.

    complete: relations that the circuit writes, which are read as of the newest epoch. first: relations that are read
    first because other rows look theirs up. Others are read in the order that the views specify, else smaller ones
    first. beside: whether live views run between the pieces.
    """
    # A source that no epoch has read yet has no history, but live views may read it meanwhile.
    read = [r for r in relations if beside or r.id in complete or not r.connector or r.id in frontier.sources]
    head, rows = contents.head, contents.rows
    # Sources are last: they are usually the large, append-only side.
    order = sorted(read, key=lambda r: (r.id not in first, bool(r.connector), rows.get(r.id, 0), r.id))
    known = db.catalog().relations
    pairs = [pair for i in purpose.views if isinstance(v := known.get(i), MaterializedView) for pair in v.fill_order]
    read_ids = tuple(in_order([r.id for r in order], [(a, b) for a, b in pairs if a in first or b not in first]))
    if isinstance(purpose, Filling):
        stored = tuple(i for i in read_ids if i in complete)
        late = db.log.progress().late if beside else {}
        purpose = replace(purpose, stored=stored, beside=read_ids if beside else (), late=late)
    last, read_rows = _last_read(db, frontier, head), contents.rows_of(order)
    return Backfill(purpose, contents.checkpoint, last, head, read_ids, waits=not beside, rows=read_rows)


def in_order(items: Iterable[str], pairs: Collection[tuple[str, str]]) -> list[str]:
    """`items` in an order in which the first of each pair precedes the second, otherwise as they are. Of pairs that
    form a cycle, one has no effect.
    """
    left, found = list(items), []
    while left:
        blocked = {later for earlier, later in pairs if earlier in left}
        found.append(next((i for i in left if i not in blocked), left[0]))
        left.remove(found[-1])
    return found


def _last_read(db: Database, frontier: Frontier, head: int) -> int:
    """The last commit whose tables `frontier` reflects: `head` if it lacks no transaction. Commits between the last
    transaction and `head` may be gone.
    """
    return frontier.transaction if db.log.newest_transaction(head) > frontier.transaction else head


def next_round(db: Database, backfill: Backfill, frontier: Frontier, few: int, *, limited: bool) -> Backfill:
    """The round after `backfill`, which reads what was committed since, up to `frontier`, the newest epoch's. It is the
    last one if these are at most `few` rows, or not clearly fewer than in the round before although that one was not
    `limited` to rows per second.
    """
    purpose = backfill.purpose
    assert isinstance(purpose, Filling)
    head, read = db.log.head(), frozenset(purpose.beside)
    rows = 0
    for number in range(min(backfill.transaction, backfill.head) + 1, head + 1):
        commit = db.log.read(number)
        found, taken = commit.relations, commit.progress.taken
        rows += sum(b.rows for i in found.keys() & read for b in found[i].blobs)
        rows += sum(s.rows for i in taken.keys() & read for s in taken[i])
    shrinks = rows <= _SHRINKING * backfill.rows
    return replace(
        backfill,
        transaction=_last_read(db, frontier, head),
        head=head,
        relations=purpose.beside,
        cursor=None,
        round=backfill.round + 1,
        before=(backfill.transaction, backfill.head),
        waits=rows <= few or not (shrinks or limited),
        rows=rows,
        read=0,
        hurries=backfill.hurries or not shrinks,
    )


def reach(
    circuit: Circuit, views: Iterable[str], complete: Iterable[str], late: Mapping[str, int], *, beside: bool = False
) -> Fill:
    """The first epoch that fills `views`. complete: relations whose content can be read.

    late: for each relation, the number of rows dropped as late. Arrangements of other views are replayed, unless they
    drop old rows, or omit null-key rows that a join outputs, or beside live views, which change them.
    """
    filled, stored = set(views), set(complete)
    ends: dict[str, StoredContent] = {}
    for sink in circuit.sinks:
        top = circuit.by_id[sink.inputs[0]]
        if sink.relation_id not in stored or (isinstance(top, Scan) and top.late == late.get(top.relation_id, 0)):
            continue  # this view copies the content of its relation
        spread = tuple((i,) for i in range(len(top.schema)))
        ends.setdefault(top.id, StoredContent(sink.relation_id, spread if sink.keys is None else sink.keys))
    tops = {s.id for s in circuit.sinks if s.relation_id in filled}
    later = {o.id for o in circuit.operators if isinstance(o, Cut) and o.keeps == "after"}  # these output no history
    looked_up = {i for o in circuit.operators for i in _first(o)}
    live = circuit.upstream({s.id for s in circuit.sinks if s.relation_id not in filled})
    history = {o.id for o in circuit.operators if isinstance(o, Versions) and o.id in live}  # only these have it
    replayed = {o.id for o in circuit.operators if isinstance(o, Arrange) and o.id in live and o.keeps_all} | history
    if any(_first(circuit.by_id[i]) for i in circuit.upstream(tops, ends.keys())):
        replayed = replayed & looked_up | history  # these rows are only looked up after all have arrived
    if beside:
        replayed = set()
    while True:
        reached = circuit.upstream(tops, ends.keys() | replayed | later)
        joins = [o for o in circuit.operators if isinstance(o, (AsofJoin, Join)) and o.id in reached - ends.keys()]
        lacking = {i for join in joins for i in _showing_null_keys(join, circuit)} & replayed
        if not lacking:
            break
        replayed -= lacking

    def role(operator_id: str) -> Role:
        if operator_id in replayed:
            return "replayed"
        return "copied" if operator_id in live else "new"

    roles = {i: role(i) for i in sorted(reached - ends.keys())}
    return Fill(True, roles, {o: ends[o] for o in sorted(reached & ends.keys())}, beside=beside)


def reach_beside(circuit: Circuit, purpose: Filling) -> Fill:
    """The first epoch of a fill beside live views."""
    return reach(circuit, purpose.views, purpose.stored, purpose.late, beside=True)


def fill_rates(known: Mapping[str, Relation], views: Iterable[str]) -> list[int]:
    """The limits of views on the rows of history per second."""
    found = [r.fill_rate for i in views if isinstance(r := known.get(i), MaterializedView)]
    return [rate for rate in found if rate is not None]


def fill_in(before: Circuit, circuit: Circuit, backfill: Backfill, known: Mapping[str, Relation]) -> Backfill | None:
    """A fill that has begun in the circuit `before`, in `circuit`, which lacks some of the views; None if that is
    another circuit, if live views wait for the fill or it reads sources, or if an operator would get another role.
    """
    purpose, sinks = backfill.purpose, {s.relation_id for s in circuit.sinks}
    if not isinstance(purpose, Filling) or backfill.waits or before.fingerprint == circuit.fingerprint:
        return None
    if not sinks < {s.relation_id for s in before.sinks} or connected(known, purpose):
        return None  # to open sources again would save their memory
    left = replace(purpose, views=tuple(v for v in purpose.views if v in sinks))
    old, new = reach_beside(before, purpose), reach_beside(circuit, left)
    same = all(old.roles.get(i) == role for i, role in new.roles.items())
    if not same or not new.content.keys() <= old.content.keys():
        return None
    read = {s.relation_id for s in circuit.scans if s.id in new.roles} | {c.relation_id for c in new.content.values()}
    relations = tuple(i for i in backfill.relations if i in read)
    return replace(
        backfill,
        purpose=replace(left, beside=tuple(i for i in purpose.beside if i in read)),
        relations=relations,
        cursor=backfill.cursor if relations[:1] == backfill.relations[:1] else None,
    )


def looked_up_first(
    circuit: Circuit, running: Collection[str], stored: Mapping[str, StoredContent], *, live: bool = False
) -> frozenset[str]:
    """The relations that are read before others, because rows of the others look up theirs on arrival.

    running: the operators that run. stored: see `epochs.Mode`. live: whether the epochs are live, so that left and
    right joins on arrival don't wait for the side that is looked up.
    """
    joins = [
        i
        for o in circuit.operators
        if o.id in running and not (live and isinstance(o, ArrivalJoin) and o.join_kind in ("left", "right"))
        for i in _first(o)
    ]
    reached = circuit.upstream(set(joins), stored.keys()) if joins else set()
    return frozenset(
        [
            *(o.relation_id for o in circuit.scans if o.id in reached),
            *(content.relation_id for i, content in stored.items() if i in reached),
        ]
    )


def _first(op: Operator) -> tuple[str, ...]:
    """The inputs of an operator whose rows must be present before rows of its other inputs arrive."""
    if isinstance(op, ArrivalJoin):
        return {"right": op.inputs[:1], "full": ()}.get(op.join_kind, op.inputs[1:])
    return op.inputs[1:] if isinstance(op, (ArrivalAsofJoin, TemporalJoin)) else ()


def preserved(join: Operator) -> list[str]:
    """The inputs of which a join also outputs rows without a match."""
    if not isinstance(join, (AsofJoin, Join)):
        return []
    kinds = ("left", "full", "anti"), ("right", "full")
    return [i for i, outer in zip(join.inputs, kinds, strict=True) if join.join_kind in outer]


def _showing_null_keys(join: AsofJoin | Join, circuit: Circuit) -> Iterator[str]:
    """The inputs whose rows with a NULL key a join outputs. No arrangement keeps such rows."""
    for arrangement in preserved(join):
        op = circuit.by_id[arrangement]
        if isinstance(op, Arrange) and any(
            op.schema[k].nullable and not safe for k, safe in zip(op.keys, op.null_safe, strict=True)
        ):
            yield arrangement


def next_piece(
    db: Database,
    backfill: Backfill,
    sources: Mapping[str, Source],
    rows: int,
    size_bytes: int,
    *,
    drops: Collection[str] = (),
) -> Piece:
    """The next piece: as many relations as fit into the given rows and bytes.

    sources: those whose history is read. drops: the relations whose late rows live epochs drop.
    """
    purpose = backfill.purpose
    if isinstance(purpose, Filling) and purpose.part < purpose.parts:
        more = bool(backfill.relations) or purpose.part + 1 < purpose.parts
        after = replace(backfill, purpose=replace(purpose, part=purpose.part + 1), started=True)
        return Piece((), after if more else None, more)
    stored = purpose.stored if isinstance(purpose, Filling) else ()
    slices: list[Slice] = []
    lost: dict[str, str] = {}
    relations = list(backfill.relations)
    cursor = backfill.cursor
    found: Sequence[Slice]
    most_rows = rows
    while relations and rows > 0 and size_bytes > 0:
        relation_id = relations[0]
        if relation_id in sources and relation_id not in stored and backfill.round:
            late = relation_id in drops
            found, cursor = _taken_slices(db, backfill, relation_id, cursor, rows, size_bytes, drops=late)
        elif relation_id in sources and relation_id not in stored:
            history = sources[relation_id].history(cursor, rows, size_bytes)
            found = history.slices
            cursor = history.cursor
            if history.lost:
                lost[relation_id] = history.lost
        else:
            last = backfill.head if relation_id in stored else backfill.transaction
            if backfill.round and cursor is None:
                cursor = ["commit", backfill.before[relation_id in stored] + 1, 0, 0]
            below = _late_below(db, backfill, relation_id) if relation_id in drops and relation_id not in stored else {}
            found, cursor = _stored_slices(db, backfill, relation_id, cursor, last, rows, size_bytes, below)
        slices += found
        rows -= sum(_rows(s) for s in found)
        size_bytes -= sum(s.size_bytes * _rows(s) // max(1, s.rows) for s in found)
        if cursor is not None:
            break
        relations.pop(0)
    goes_on = bool(relations) or not backfill.waits
    taken = most_rows - rows
    rest = replace(backfill, relations=tuple(relations), cursor=cursor, started=True, read=backfill.read + taken)
    return Piece(tuple(slices), rest if goes_on else None, bool(relations), lost, taken)


def progress_of(backfill: Backfill) -> float:
    """The part of the history that was read, from 0 to 1. The replay of arrangements counts as half of it."""
    purpose = backfill.purpose
    if backfill.round:
        return 1.0  # only changes that were committed meanwhile are left
    part = min(1.0, backfill.read / max(1, backfill.rows))
    if isinstance(purpose, Filling) and purpose.parts:
        part = (purpose.part / purpose.parts + part) / 2
    return round(part, 3)


def lease_at(db: Database, backfill: Backfill) -> int:
    """The commit whose checkpoint, and all later commits, must stay while the backfill runs."""
    return load_checkpoint(db.layout, backfill.checkpoint).moment.transaction if backfill.checkpoint else 0


def _stored_rows(db: Database, checkpoint: Checkpoint, upto: int) -> dict[str, int]:
    """The approximate number of rows of each relation that a backfill up to commit `upto` reads."""
    rows = {i: s.stored_rows for i, s in checkpoint.relations.items()}
    for number in range(checkpoint.moment.transaction + 1, upto + 1):
        for relation_id, change in db.log.read(number).relations.items():
            rows[relation_id] = rows.get(relation_id, 0) + sum(b.rows for b in change.blobs)
    return rows


def _live_epochs(db: Database, backfill: Backfill) -> Iterator[tuple[Commit, Mapping[str, int]]]:
    """The live epochs of a round, each with the watermarks before it."""
    for number in range(backfill.before[1] + 1, backfill.head + 1):
        commit = db.log.read(number)
        if commit.epoch is not None and commit.frontier is not None:
            before = db.log.find(commit.epoch_before) if commit.epoch_before else None
            yield commit, {} if before is None else before.progress.watermarks


def _late_below(db: Database, backfill: Backfill, relation_id: str) -> dict[int, int]:
    """For each commit of a round with rows of a table, the watermark below which a live epoch dropped them as late."""
    if not backfill.round:
        return {}  # nothing that was there before is late
    found: dict[int, int] = {}
    first = backfill.before[0] + 1
    for commit, watermarks in _live_epochs(db, backfill):
        assert commit.frontier is not None
        if relation_id in watermarks:
            found |= dict.fromkeys(range(first, commit.frontier.transaction + 1), watermarks[relation_id])
        first = max(first, commit.frontier.transaction + 1)
    return found


def _taken_slices(
    db: Database, backfill: Backfill, relation_id: str, cursor: Any, rows: int, size_bytes: int, *, drops: bool
) -> tuple[list[Slice], Any]:
    """(slices, the next cursor) of the input of a source that live epochs read in a round. cursor: ["taken", commit,
    slice].
    """
    slices: list[Slice] = []
    _, begin, first = cursor or ("taken", 0, 0)
    for commit, watermarks in _live_epochs(db, backfill):
        if commit.number < begin:
            continue
        taken = commit.progress.taken.get(relation_id, ())
        for place in range(first if commit.number == begin else 0, len(taken)):
            piece = taken[place]
            if slices and (rows < piece.rows or size_bytes < piece.size_bytes):
                return slices, ["taken", commit.number, place]
            slices.append(replace(piece, late_below_us=watermarks.get(relation_id)) if drops else piece)
            rows -= piece.rows
            size_bytes -= piece.size_bytes
    return slices, None


def _stored_slices(
    db: Database,
    backfill: Backfill,
    relation_id: str,
    cursor: Any,
    last: int,
    rows: int,
    size_bytes: int,
    below: Mapping[int, int],
) -> tuple[list[Slice], Any]:
    """(slices, the next cursor). cursor: ["blob", number, row] in the snapshot, or ["commit", number, blob, row].

    last: the number of the last commit to read. Beside live views, large blobs are cut. below: see `_late_below`.
    """
    cuts = not backfill.waits
    slices: list[Slice] = []
    for place, row, whole in _from(db, backfill.checkpoint, relation_id, cursor, last):
        piece = replace(whole, late_below_us=below.get(place[1])) if below and place[0] == "commit" else whole
        left = piece.rows - row
        if slices and (rows < 1 or size_bytes < 1 or (not cuts and (rows < left or size_bytes < piece.size_bytes))):
            return slices, [*place, row]
        taken = min(left, max(1, rows)) if cuts else left
        slices.append(piece if taken == piece.rows else replace(piece, part=(row, row + taken)))
        if taken < left:
            return slices, [*place, row + taken]
        rows -= taken
        size_bytes -= piece.size_bytes * taken // max(1, piece.rows)
    return slices, None


def stored_slices(db: Database, checkpoint: int, relation_id: str, last: int) -> list[ChangeSlice]:
    """The content of a relation as of commit `last`, from a checkpoint on."""
    return [piece for _, _, piece in _from(db, checkpoint, relation_id, None, last)]


def _from(
    db: Database, checkpoint: int, relation_id: str, cursor: Any, last: int
) -> Iterator[tuple[list[Any], int, ChangeSlice]]:
    """The stored slices of a relation from a cursor on, each with its place and its first row to read."""
    place = _start(db, checkpoint, relation_id) if cursor is None else [*cursor, 0]  # old cursors have no row
    if place[0] == "blob":
        snapshot = load_checkpoint(db.layout, checkpoint).relations[relation_id]
        for number, blob in list(enumerate(snapshot.blobs))[place[1] :]:
            yield ["blob", number], place[2] if number == place[1] else 0, blob_slice(relation_id, blob)
        place = ["commit", snapshot.upto + 1, 0, 0]
    tables = frozenset([relation_id])
    for number in range(place[1], last + 1):
        first, row = place[2:4] if number == place[1] else (0, 0)
        for position, piece in enumerate(commit_slices(db.log.read(number), tables, first), first):
            yield ["commit", number, position], row if position == first else 0, piece


def _rows(piece: Slice) -> int:
    part = piece.part if isinstance(piece, ChangeSlice) else None
    return piece.rows if part is None else part[1] - part[0]


def _start(db: Database, checkpoint: int, relation_id: str) -> list[Any]:
    if checkpoint:
        found = load_checkpoint(db.layout, checkpoint)
        if relation_id in found.relations:
            return ["blob", 0, 0]
        # The relation was created after the checkpoint, so all its changes are in later commits.
        return ["commit", found.moment.transaction + 1, 0, 0]
    return ["commit", 1, 0, 0]


#: The part of a round's rows that the next round may have at most, or live views wait until it has been read.
_SHRINKING: Final = 0.8


class LateRowsError(OperationalError):
    """Rows were dropped as late after a view was compiled and before it was filled, so it must be compiled again."""

    def __init__(self) -> None:
        super().__init__(
            "STATE_MISMATCH", "late rows arrived while a view was being created", hint="Create the view again."
        )


def check_shared(circuit: Circuit, live: frozenset[str], fill: Fill, progress: Progress) -> None:
    """Raises LateRowsError if operators of live views, from which new views read all rows, dropped rows after the new
    views were compiled.

    live: the live views. fill: the first epoch of the new views. progress: that of the newest epoch.
    """
    read = [circuit.by_id[i] for i in fill.roles.keys() - fill.having("replayed")]
    scans = {o.id for o in read if isinstance(o, Scan) and o.late != progress.late.get(o.relation_id, 0)}
    filters = {o.id for o in read if isinstance(o, LateRowFilter)}
    if not scans and not (filters and progress.left_out):
        return
    for sink in circuit.sinks:
        if sink.relation_id not in live:
            continue
        below = circuit.upstream({sink.id})
        if below & scans or (progress.left_out.get(sink.relation_id) and below & filters):
            raise LateRowsError


def check_rebuild(circuit: Circuit, progress: Progress, known: Mapping[str, Relation]) -> None:
    """Raises FEATURE_NOT_SUPPORTED if the history now differs from the rows that the views' content was computed
    from.
    """
    for kind, (what, detail, then) in _REFUSALS.items():
        if any(isinstance(op, kind) and not _has_history(op, circuit) for op in circuit.operators):
            again = f"Drop the view, rebuild, and create it again: {then}"
            raise _no_rebuild(f"the state of a view {what}", detail, again)
    for sink in circuit.sinks:
        if late := progress.left_out.get(sink.relation_id, 0):
            raise _no_rebuild(
                f"the state of {known[sink.relation_id].reader if sink.relation_id in known else sink.relation_id}",
                f"{late} of the rows that it joins arrived late: its state lacks them, their history has them.",
                "Drop it, rebuild, and create it again: nothing is late for it then.",
            )
    for relation_id in sorted({s.relation_id for s in circuit.scans}):
        relation = known.get(relation_id)
        name = relation_id if relation is None else relation.shown
        again = "Drop the views over it, rebuild, and create them again:"
        if isinstance(relation, CatalogSource) and ARRIVAL in relation.defaults.values():
            raise _no_rebuild(
                f'the state of views over "{name}"',
                "When its rows arrived is stored only in the state and in the views' content.",
                f"{again} its rows then arrive again.",
            )
        if late := progress.late.get(relation_id, 0):
            raise _no_rebuild(
                f'the state of views over "{name}"',
                f"{late} of its rows arrived late: the views don't have them, but its history does.",
                f"{again} they then show these rows, too.",
            )


_MATCHED: Final = "What its rows matched when they arrived is stored only in the state and in the view's content."
_JOINED: Final = "its rows are then joined with what is there."
#: For each operator whose state history can't rebuild: (the view, the reason, the effect of creating the view again).
_REFUSALS: Final[Mapping[type[Operator], tuple[str, str, str]]] = {
    TemporalJoin: ("with a temporal join", _MATCHED, _JOINED),
    ArrivalAsofJoin: ("with EMIT ON ARRIVAL", _MATCHED, _JOINED),
    ArrivalJoin: ("with EMIT ON ARRIVAL", _MATCHED, _JOINED),
    Cut: (
        "that begins at a moment",
        "Which rows its inputs had when it was created is stored only in the state.",
        "it then begins at that moment.",
    ),
    Versions: (
        "that reads versions of a table",
        "Which rows the table had earlier is stored only in the state.",
        "it then starts with the present rows.",
    ),
    ChangeLog: (
        "of AS CHANGELOG",
        "Which changes its input had earlier is stored only in the view's content.",
        "it then begins with the present rows.",
    ),
    Records: (
        "with join_restore_nulls = 0",
        "Which rows once had a partner is stored only in the state.",
        "rows without a partner then show NULLs.",
    ),
}


def _has_history(op: Operator, circuit: Circuit) -> bool:
    """Whether history can rebuild the operator's state although its kind is in `_REFUSALS`."""
    return isinstance(op, Records) and (op.keys is not None or circuit.by_id[op.inputs[0]].append_only)


def _no_rebuild(what: str, detail: str, hint: str) -> Error:
    return error("FEATURE_NOT_SUPPORTED", f"{what} can't be rebuilt", detail=detail, hint=hint)


def check_whole(lost: Mapping[str, str]) -> None:
    """Raises FEATURE_NOT_SUPPORTED if a part of the history no longer exists. lost: see
    `coordinator.Coordinator.lost`.
    """
    for what in lost.values():
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the state can't be rebuilt without {what}",
            detail="What they were joined with, or counted in, is stored only in the state.",
            hint="Drop the views that read them, rebuild, and create the views again.",
        )
