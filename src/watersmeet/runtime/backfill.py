"""Fills of new views, and rebuilds of state: the order and the pieces in which they read history.

A backfill reads the content at the frontier in bounded pieces. Its progress (`Backfill`) is part of the frontier of
commits, so it always agrees with the state. Tables, complete views and connectors' tables are read from the newest
checkpoint and later commits; sources read their history again. Smaller relations are read first, so that rows of large
ones find their matches. Arrangements shared with live views are replayed before that, by ranges of key hashes.

Live views run between the pieces. The new views have their own copies or clones of shared operators until they are
complete. After the content, rounds read the changes that were committed meanwhile; live views wait only for the last,
small one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from watersmeet.catalog import MaterializedView, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import AsOf, ClockInput, Fill, StoredContent
from watersmeet.connectors.base.sources import Source
from watersmeet.errors import error
from watersmeet.runtime.engine import Database
from watersmeet.runtime.eventtimes import clocks, rising
from watersmeet.runtime.inputs import blob_slice, commit_slices, connected, progress_before, replayable
from watersmeet.runtime.reach import (
    can_run_beside,
    looked_up_first,
    must_replay,
    only_read_by,
    phase_levels,
    reach,
    reach_beside,
    read_by,
    waiting,
)
from watersmeet.runtime.workers import LEAST_COSTLY_ROWS, LEAST_REPLAYS
from watersmeet.store.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint
from watersmeet.store.manifests import Backfill, Commit, Filling, Frontier, Purpose
from watersmeet.values.slices import ChangeSlice, Slice


@dataclass(frozen=True)
class Piece:
    """The slices of one epoch. after: the progress after it, None at the end. lost: for each relation, the part of its
    history that no longer exists. rows: the number of rows. until: the range after the replayed ones.
    """

    slices: tuple[Slice, ...]
    after: Backfill | None
    more: bool
    lost: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    until: int = 0


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


def relations_read(
    db: Database, circuit: Circuit, running: Collection[str], stored: Mapping[str, StoredContent]
) -> list[Relation]:
    """The relations that a backfill reads. running, stored: as in `looked_up_first`."""
    ids = {o.relation_id for o in circuit.scans if o.id in running} | {c.relation_id for c in stored.values()}
    known = db.catalog().relations
    if missing := ids - known.keys():
        raise error("INTERNAL_ERROR", f"the circuit reads {', '.join(sorted(missing))}, which the catalog lacks")
    return [r for i, r in known.items() if i in ids]


@dataclass(frozen=True)
class Beside:
    """A fill beside live views before it begins. history: the first epoch. read: all relations that are read."""

    purpose: Filling
    history: Fill
    read: list[Relation]


def beside(
    db: Database,
    circuit: Circuit,
    views: tuple[str, ...],
    live: frozenset[str],
    contents: Contents,
    replayed_rows: Callable[[Fill], int],
    *,
    few_rows: int,
    time_us: int,
) -> Beside | None:
    """A fill of `views` while the views `live` run; None if that is impossible, or the history has at most `few_rows`
    rows and no limit. replayed_rows: the number of rows in the arrangements that a fill replays. time_us: the time of
    the newest epoch.
    """
    progress = db.log.progress()
    limits = fill_rates(db.catalog().relations, views)
    limited = bool(limits)
    if not (live or limited):
        return None
    history = reach(circuit, views, live, progress.late)
    relations = relations_read(db, circuit, history.roles.keys(), history.stored)
    whole = reach(circuit, views, live, progress.late, copies=True, replays=True)
    read = relations_read(db, circuit, whole.roles.keys(), whole.stored)
    rows = replayed_rows(history)
    large = limited or contents.rows_of(relations) + rows > few_rows
    if not (large and can_run_beside(circuit, history, whole)):
        return None
    part_rows = max(1, min(LEAST_COSTLY_ROWS, few_rows, rows, *(rate for rate in limits if rate)))
    replays = must_replay(circuit, history, whole, read, progress.late)
    waits = waiting(circuit, history, gathers=not replays)
    phases = 1 + max(level for i, level in phase_levels(circuit, waits).items() if i in waits) if waits else 0
    purpose = Filling(views, parts=-(-rows // part_rows), part_rows=part_rows, cloned=True, phases=phases)
    if replays:
        if not (relations or rows):
            return None
        if not live:
            time_us = max(time_us, db.clock.now_us())
        purpose = replace(purpose, replays=True, time_us=time_us, watermarks=progress.watermarks)
    return Beside(purpose, history, read)


def begin(
    db: Database,
    circuit: Circuit,
    purpose: Purpose,
    fill: Fill,
    frontier: Frontier,
    contents: Contents,
    *,
    complete: frozenset[str] = frozenset(),
    beside: list[Relation] | None = None,
) -> Backfill:
    """The beginning of a backfill at `frontier`. fill: what runs in it. contents: the present ones.

    complete: relations that the circuit writes, which are read as of the newest epoch. Relations whose rows are looked
    up are read first, others in the order that the views specify, else smaller ones first. beside: if live views run
    between the pieces, all relations that are read, including those without history for the views.
    """
    relations = relations_read(db, circuit, fill.roles.keys(), fill.stored)
    first = looked_up_first(circuit, fill.roles.keys(), fill.stored)
    # A source that no epoch has read yet has no history, but live views may read it meanwhile.
    read = [
        r for r in relations if beside is not None or r.id in complete or not r.connector or r.id in frontier.sources
    ]
    head, rows = contents.head, contents.rows
    # Sources are last: they are usually the large, append-only side.
    order = sorted(read, key=lambda r: (r.id not in first, bool(r.connector), rows.get(r.id, 0), r.id))
    known = db.catalog().relations
    pairs = [pair for i in purpose.views if isinstance(v := known.get(i), MaterializedView) for pair in v.fill_order]
    read_ids = tuple(in_order([r.id for r in order], [(a, b) for a, b in pairs if a in first or b not in first]))
    if isinstance(purpose, Filling):
        stored = tuple(i for i in read_ids if i in complete)
        later_ids = tuple(r.id for r in beside or () if r.id not in read_ids)
        purpose = replace(
            purpose,
            stored=(*stored, *(i for i in later_ids if i in complete)),
            beside=() if beside is None else read_ids + later_ids,
            late={} if beside is None else db.log.progress().late,
        )
    last, read_rows = _last_read(db, frontier, head), contents.rows_of(order)
    return Backfill(purpose, contents.checkpoint, last, head, read_ids, waits=beside is None, rows=read_rows)


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


def next_phase(circuit: Circuit, backfill: Backfill, stored_rows: Callable[[Collection[str]], int]) -> Backfill | None:
    """The next phase of round 0, or None after the last one. stored_rows: the number of rows in the state of
    operators. All epochs must be committed.
    """
    purpose = backfill.purpose
    assert isinstance(purpose, Filling)
    if backfill.round or purpose.phase == purpose.phases:
        return None
    waits = waiting(circuit, reach_beside(circuit, purpose, later=False), gathers=purpose.gathers)
    levels = phase_levels(circuit, waits)
    rows = stored_rows([i for i in waits if levels[i] == purpose.phase])
    parts = max(1, -(-rows // purpose.part_rows))
    return replace(backfill, purpose=replace(purpose, phase=purpose.phase + 1, part=0, parts=parts))


def next_round(
    db: Database, circuit: Circuit, backfill: Backfill, frontier: Frontier, few: int, *, limited: bool
) -> Backfill:
    """The round after `backfill`, which reads what was committed since, up to `frontier`, the newest epoch's. It is the
    last one if these are at most `few` rows, or not clearly fewer than in the round before although that one was not
    `limited` to rows per second. A round that replays counts epochs, and the last one has few of them, too.
    """
    purpose, head = backfill.purpose, db.log.head()
    assert isinstance(purpose, Filling)
    following = replace(
        backfill,
        transaction=_last_read(db, frontier, head),
        head=head,
        relations=purpose.beside,
        cursor=None,
        round=backfill.round + 1,
        before=(backfill.transaction, backfill.head),
        read=0,
    )
    epochs = rows = 0
    if purpose.replays:
        fill = reach_beside(circuit, purpose, later=True)
        for _, slices in _left_to_replay(db, circuit, fill, following):
            epochs += 1
            rows += sum(s.rows for s in slices)
        total, is_short = epochs, epochs <= LEAST_REPLAYS and rows <= few
        shrinks = not backfill.round or total <= _SHRINKING * backfill.rows
    else:
        read = frozenset(purpose.beside)
        for number in range(min(backfill.transaction, backfill.head) + 1, head + 1):
            commit = db.log.read(number)
            found, taken = commit.relations, commit.progress.taken
            rows += sum(b.rows for i in found.keys() & read for b in found[i].blobs)
            rows += sum(s.rows for i in taken.keys() & read for s in taken[i])
        total, is_short = rows, rows <= few
        shrinks = total <= _SHRINKING * backfill.rows
    waits = is_short or not (shrinks or limited)
    return replace(following, waits=waits, rows=total, hurries=backfill.hurries or not shrinks)


def fill_rates(known: Mapping[str, Relation], views: Iterable[str]) -> list[int]:
    """The limits of views on the rows of history per second."""
    found = [r.fill_rate for i in views if isinstance(r := known.get(i), MaterializedView)]
    return [rate for rate in found if rate is not None]


def fill_rate(db: Database, backfill: Backfill) -> int | None:
    """The maximum number of rows of history per second; 0: none for now; None: any number."""
    if backfill.waits:
        return None
    rate = min(fill_rates(db.catalog().relations, backfill.purpose.views), default=None)
    return None if rate and backfill.hurries else rate


def fill_in(before: Circuit, circuit: Circuit, backfill: Backfill, known: Mapping[str, Relation]) -> Backfill | None:
    """A fill that has begun in the circuit `before`, continued in `circuit`, which lacks some of the views. None if the
    circuits differ otherwise, if live views wait for the fill or it reads sources, or if an operator would get another
    role.
    """
    purpose, sinks = backfill.purpose, {s.relation_id for s in circuit.sinks}
    if not isinstance(purpose, Filling) or backfill.waits or before.fingerprint == circuit.fingerprint:
        return None
    if not sinks < {s.relation_id for s in before.sinks} or connected(known, purpose):
        return None  # to open sources again would save their memory
    left = replace(purpose, views=tuple(v for v in purpose.views if v in sinks))
    for later in (False, True):
        old, new = reach_beside(before, purpose, later=later), reach_beside(circuit, left, later=later)
        same = all(old.roles.get(i) == role for i, role in new.roles.items())
        if not same or not new.content.keys() <= old.content.keys():
            return None
    if purpose.replays and only_read_by(before, old) & read_by(circuit, new) != only_read_by(circuit, new):
        return None  # the watermark of a source would not be moved as before
    read = {s.relation_id for s in circuit.scans if s.id in new.roles} | {c.relation_id for c in new.content.values()}
    replays = purpose.replays and backfill.round > 0
    relations = backfill.relations if replays else tuple(i for i in backfill.relations if i in read)
    return replace(
        backfill,
        purpose=replace(left, beside=tuple(i for i in purpose.beside if i in read)),
        relations=relations,
        cursor=backfill.cursor if replays or relations[:1] == backfill.relations[:1] else None,
    )


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
        # At least one part, even if the limit of rows per second has become lower since the parts were made.
        parts = max(1, rows // purpose.part_rows) if purpose.part_rows else 1
        until = min(purpose.parts, purpose.part + parts)
        after = replace(backfill, purpose=replace(purpose, part=until), started=True)
        more, taken = not after.is_read, (until - purpose.part) * purpose.part_rows
        return Piece((), after if more or not backfill.waits else None, more, rows=taken, until=until)
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


def next_replay(
    db: Database, circuit: Circuit, fill: Fill, backfill: Backfill
) -> tuple[Piece, AsOf | None, Mapping[str, int]]:
    """(the next live epoch that a round replays, the moment as of which it ran, `Backfill.risen` after it); without a
    moment if no epoch is left. fill: all that runs in it (`reach_beside` with `later`). All epochs must be committed if
    clocks rise while their relations are idle.
    """
    found = list(islice(_left_to_replay(db, circuit, fill, backfill), 2))
    more = len(found) > 1
    rest = replace(backfill, relations=backfill.relations if more else (), started=True)
    if not found:
        return Piece((), None if backfill.waits else rest, more=False), None, backfill.risen
    commit, slices = found[0]
    silent = commit.progress.silent
    rises = rising(circuit, fill.runs, silent, backfill.risen, db.log.progress())
    risen = {**backfill.risen, **{clock: silent[clock] for clock in rises}}
    rest = replace(rest, cursor=commit.number, read=backfill.read + 1, risen=risen)
    piece = Piece(slices, rest if more or not backfill.waits else None, more, rows=sum(s.rows for s in slices))
    moved = _own_clocks(circuit, fill)
    own = _own_watermarks(circuit, fill, moved)
    moment = AsOf(
        commit.progress.time_us,
        {i: n for i, n in progress_before(db.log, commit).watermarks.items() if i not in own},
        {i: n for i, n in commit.progress.watermarks.items() if i not in own},
        tuple(sorted(own)),
        is_live=True,
        clocks=moved,
        epoch=commit.epoch or 0,
        idle={i: others for i, others in commit.progress.idle.items() if i in own},
        overrides=rises,
    )
    return piece, moment, risen


def _left_to_replay(
    db: Database, circuit: Circuit, fill: Fill, backfill: Backfill
) -> Iterator[tuple[Commit, tuple[Slice, ...]]]:
    """As `replayable`, for the new views. fill: as in `next_replay`."""
    assert isinstance(backfill.purpose, Filling)
    timed = not circuit.timed.isdisjoint(fill.roles)
    return replayable(db.log, backfill.purpose, backfill, timed=timed)


def fill_of(
    db: Database, circuit: Circuit, backfill: Backfill, purpose: Filling, piece: Piece, *, is_last: bool
) -> Fill:
    """The epoch that reads a piece. is_last: whether it is the last piece of the history."""
    if purpose.beside:
        fill = reach_beside(circuit, purpose, later=backfill.round > 0)
    else:
        fill = reach(circuit, purpose.views, purpose.stored, db.log.progress().late)
    waits = waiting(circuit, fill, gathers=purpose.gathers) if not backfill.round else ()
    return replace(
        fill,
        waiting=waits,
        phase=purpose.phase,
        levels=phase_levels(circuit, waits) if waits and purpose.phases else {},
        first=not backfill.started,
        part=purpose.part,
        until=piece.until or purpose.part,
        parts=purpose.parts,
        moment=_as_of_beginning(circuit, purpose, is_end=is_last) if purpose.replays else None,
    )


def _as_of_beginning(circuit: Circuit, purpose: Filling, *, is_end: bool) -> AsOf:
    """The moment as of which the history of a fill is read that replays live epochs. is_end: whether this is its last
    piece.
    """
    fill = reach_beside(circuit, purpose, later=True)
    own = _own_watermarks(circuit, fill, _own_clocks(circuit, fill))
    known = {i: n for i, n in purpose.watermarks.items() if i not in own}
    return AsOf(purpose.time_us, known, known, tuple(sorted(own)), is_end=is_end)


def _own_watermarks(circuit: Circuit, fill: Fill, moved: Mapping[str, Mapping[str, ClockInput]]) -> frozenset[str]:
    """The names of the watermarks that no live epoch moves. moved: see `_own_clocks`."""
    return only_read_by(circuit, fill).union(*moved.values())


def _own_clocks(circuit: Circuit, fill: Fill) -> dict[str, dict[str, ClockInput]]:
    """The clocks of operators that only views that are being filled have, as in `Live`."""
    live = clocks(circuit, fill.having("new"))
    names = {name for named in live.values() for name in named}
    found = {i: {n: c for n, c in named.items() if n not in names} for i, named in clocks(circuit).items()}
    return {i: named for i, named in found.items() if named}


def progress_of(backfill: Backfill) -> float:
    """The part of the history that was read, from 0 to 1. The replay of arrangements counts as half of it."""
    purpose = backfill.purpose
    if backfill.round:
        return 1.0  # only changes that were committed meanwhile are left
    part = min(1.0, backfill.read / max(1, backfill.rows))
    if not isinstance(purpose, Filling):
        return round(part, 3)
    if purpose.parts:
        ranges = purpose.part / purpose.parts
        part = ranges if purpose.phase else (ranges + part) / 2
    return round((purpose.phase + part) / (purpose.phases + 1), 3)


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
            yield commit, progress_before(db.log, commit).watermarks


def _late_below(db: Database, backfill: Backfill, relation_id: str) -> dict[int, int]:
    """For each commit of a round with rows of a table, the watermark below which a live epoch dropped them as late."""
    if not backfill.round:
        return {}  # history is never late
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
