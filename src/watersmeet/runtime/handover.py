"""Segments that the committer writes itself: state moved to other buckets, and the changes of refreshed views.

Rescaling moves all state to another number of buckets; splitting moves the rows of keys whose splitting begins or ends.
Both only write references and read no run. A refreshed view gets the content of the hidden view filled for it, a
recomputed one that of its operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Literal

import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.circuit.circuit import Circuit, Roles, Split, arrangements_of, roles
from watersmeet.circuit.epochs import OTHERS, Keys, Rescale, StateDistribution
from watersmeet.circuit.operators import Exchange
from watersmeet.errors import error
from watersmeet.kernel.arrays.hashing import bucket_of_one, bucket_start
from watersmeet.kernel.operators import STATEFUL
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.shares import HASHES, HashRange, RunRef
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.kernel.runs.trace import level
from watersmeet.runtime.engine import Database
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.stages import section_of, stored_state
from watersmeet.store.changes import ChangeWriter, Diff, RelationChange, fitted, merged
from watersmeet.store.checkpoints import newest_checkpoint
from watersmeet.store.commits import Commit
from watersmeet.store.readers import Reader
from watersmeet.store.segments import SegmentWriter, epoch_prefix
from watersmeet.system.blobs import BlobRef
from watersmeet.values.types import arrow_schema

#: States by "stage/bucket".
States = Mapping[str, StateManifest]


def rescaled_segments(db: Database, before: Commit, circuit: Circuit, epoch: int, mode: Rescale) -> dict[str, str]:
    """Write a segment with the state for `circuit`. Returns the segment's name for each "stage/bucket". before: the
    previous epoch.

    Raises STATE_MISMATCH if the state lacks an operator.
    """
    assert before.circuit is not None
    states = {place: stored_state(db.segments, segment, place) for place, segment in before.segments.items()}
    found = rescaled(states, load_circuit(db.layout, before.circuit), circuit, mode.distributions)
    writer = SegmentWriter(db.layout.segments, epoch_prefix(epoch, db.log.writer), durable=db.layout.durable)
    segment = writer.finish({place: section_of(state) for place, state in found.items()})
    return dict.fromkeys(found, segment)


def rescaled(
    states: States, before: Circuit, after: Circuit, distributions: Mapping[str, Mapping[str, StateDistribution]]
) -> dict[str, StateManifest]:
    """The states of the circuit `after`, which has the operators of `before` and another number of buckets.

    distributions: as in `Rescale`. Raises STATE_MISMATCH if one of the states lacks an operator.
    """
    found: dict[str, StateManifest] = {}
    for stage in range(1 if after.buckets > 1 else 0, after.last_stage + 1):
        kept = {
            o.id: [_traces(states, before, o.id, b) for b in range(before.buckets)]
            for o in after.in_stage(stage)
            if o.kind in STATEFUL
        }
        for bucket in range(after.buckets):
            found[f"{stage}/{bucket}"] = StateManifest(
                {i: _handed(old, distributions[i], bucket, after.buckets) for i, old in kept.items()}
            )
    return found


_Traces = Mapping[str, tuple[RunRef, ...]]


def _traces(states: States, circuit: Circuit, operator_id: str, bucket: int) -> _Traces:
    stage = circuit.stages[operator_id]
    state = states.get(f"{stage}/{bucket}")
    if state is None or operator_id not in state.operators:
        raise error(
            "STATE_MISMATCH",
            f"the stored state has nothing of operator {operator_id}",
            detail=f"In stage {stage}, bucket {bucket}.",
            hint="Restore the database's files.",
        )
    return state.operators[operator_id]


def _handed(
    before: Sequence[_Traces], distributions: Mapping[str, StateDistribution], bucket: int, buckets: int
) -> dict[str, tuple[RunRef, ...]]:
    """For each trace, the runs of an operator in a bucket. before: its traces in each old bucket."""
    found = {}
    for name in sorted({name for traces in before for name in traces}):
        distribution = distributions[name if name in distributions else OTHERS]
        found[name] = tuple(_refs([traces.get(name, ()) for traces in before], distribution, bucket, buckets))
    return {name: refs for name, refs in found.items() if refs}


def _refs(
    before: Sequence[Sequence[RunRef]], distribution: StateDistribution, bucket: int, buckets: int
) -> list[RunRef]:
    if distribution.how == "copied":
        return list(before[0])
    if distribution.how == "pooled":
        return list(dict.fromkeys(ref for refs in before for ref in refs))
    if not distribution.keys:
        return list(before[0]) if bucket == 0 else []
    wanted = range_of(distribution.keys, bucket, buckets)
    everywhere = HashRange(distribution.keys, 0, HASHES)
    parts = []
    for number, refs in enumerate(before):
        known = everywhere if distribution.how == "anywhere" else range_of(distribution.keys, number, len(before))
        narrowed = (ref.narrowed(wanted, known) for ref in refs)
        parts.append([ref for ref in narrowed if ref is not None])
    return list(in_levels(parts))


def range_of(keys: Keys, bucket: int, buckets: int) -> HashRange:
    """The hashes of a bucket."""
    return HashRange(keys, bucket_start(bucket, buckets), bucket_start(bucket + 1, buckets))


def in_levels(parts: Sequence[Sequence[RunRef]]) -> Iterator[RunRef]:
    """The runs of several traces as runs of one trace: the largest first, so that they can be merged.

    The runs of each trace keep their order, because newer rows of a key may replace older ones; all rows of a key are
    in one of the traces.
    """
    waiting = [list(reversed(part)) for part in parts if part]
    while waiting:
        largest = max(waiting, key=lambda part: level(part[-1].rows))
        yield largest.pop()
        waiting = [part for part in waiting if part]


def split_segments(db: Database, before: Commit, circuit: Circuit, epoch: int, split: Split) -> dict[str, str]:
    """Write a segment with the states that change when these keys are split. Returns the new segments by
    "stage/bucket".

    before: the previous epoch, of the same circuit.
    """
    old, new = roles(circuit, before.progress.split), roles(circuit, split)
    states: dict[str, StateManifest] = {}
    for exchange in (circuit.by_id[e] for e in sorted(old.keys() | new.keys())):
        was, will = old.get(exchange.id, Roles()), new.get(exchange.id, Roles())
        if was == will or not isinstance(exchange, Exchange):
            continue
        move = _Move(exchange.keys, len(exchange.schema), was, will, circuit.buckets)
        for arrangement in arrangements_of(exchange.id, circuit):
            places = [f"{circuit.stages[arrangement.id]}/{b}" for b in range(circuit.buckets)]
            for place in places:
                if place not in states and place in before.segments:
                    states[place] = stored_state(db.segments, before.segments[place], place)
            refs = [states[p].operators.get(arrangement.id, {}).get(ROWS, ()) for p in places]
            for place, moved in zip(places, move.moved(refs), strict=True):
                operators = dict(states[place].operators)
                operators[arrangement.id] = {ROWS: moved} if moved else {}
                states[place] = StateManifest(operators)
    if not states:
        return before.segments
    writer = SegmentWriter(db.layout.segments, epoch_prefix(epoch, db.log.writer), durable=db.layout.durable)
    segment = writer.finish({place: section_of(state) for place, state in states.items()})
    return {**before.segments, **dict.fromkeys(states, segment)}


_Where = Literal["home", "split", "copied"]


class _Move:
    """Moves the rows of split keys of an exchange. Rows of a key that is not split are in the bucket of its hash."""

    def __init__(self, keys: tuple[int, ...], width: int, was: Roles, will: Roles, buckets: int) -> None:
        self._keys: Keys = tuple((k,) for k in keys)
        self._columns: Keys = tuple((i,) for i in range(width))
        self._buckets = buckets
        self._changed = {
            k: (_where(k, was), _where(k, will))
            for k in sorted(was.keys | will.keys)
            if _where(k, was) != _where(k, will)
        }
        self._strays = was.keys

    def moved(self, before: Sequence[Sequence[RunRef]]) -> list[tuple[RunRef, ...]]:
        """The runs of an arrangement for each bucket."""
        found = []
        for bucket in range(self._buckets):
            moved = [k for k, (was, will) in self._changed.items() if self._leaves(bucket, k, was, will)]
            parts = [list(self._without(before[bucket], moved, bucket)) if moved else list(before[bucket])]
            for key, (was, will) in self._changed.items():
                if self._comes(bucket, key, was, will):
                    sources = range(self._buckets) if was == "split" else (bucket_of_one(key, self._buckets),)
                    parts += [
                        list(self._of_key(before[s], key, s, bucket if will == "split" else None)) for s in sources
                    ]
            found.append(tuple(in_levels(parts)))
        return found

    def _leaves(self, bucket: int, key: int, was: _Where, will: _Where) -> bool:
        """Whether rows of a key leave a bucket."""
        if was == "split" or will == "split":
            return was != "home" or bucket == bucket_of_one(key, self._buckets)
        return was == "copied" and bucket != bucket_of_one(key, self._buckets)

    def _comes(self, bucket: int, key: int, was: _Where, will: _Where) -> bool:
        """Whether rows of a key arrive in a bucket."""
        if was == "split" or will == "split":
            return will != "home" or bucket == bucket_of_one(key, self._buckets)
        return will == "copied" and bucket != bucket_of_one(key, self._buckets)

    def _without(self, refs: Sequence[RunRef], moved: Sequence[int], bucket: int) -> Iterator[RunRef]:
        natural = range_of(self._keys, bucket, self._buckets)
        strays = [k for k in self._strays if k not in moved]
        for low, high in pairwise([-1, *moved, HASHES]):
            rest = HashRange(self._keys, low + 1, high)
            if natural.common(rest).width > 0 or any(rest.low <= k < rest.high for k in strays):
                yield from (r for ref in refs if (r := ref.narrowed(rest, natural, strays=True)) is not None)

    def _of_key(self, refs: Sequence[RunRef], key: int, source: int, target: int | None) -> Iterator[RunRef]:
        """The rows of a key in a bucket; if its rows are spread, only those for bucket `target`."""
        natural = range_of(self._keys, source, self._buckets)
        every = HashRange(self._columns, 0, HASHES)
        for ref in refs:
            found = ref.narrowed(HashRange(self._keys, key, key + 1), natural, strays=True)
            if found is not None and target is not None:
                found = found.narrowed(range_of(self._columns, target, self._buckets), every)
            if found is not None:
                yield found


def _where(key: int, given: Roles) -> _Where:
    return "split" if key in given.split else "copied" if key in given.copied else "home"


def differences(
    db: Database, epoch: int, made: Mapping[str, str | RelationChange], known: Mapping[str, Relation]
) -> dict[str, RelationChange]:
    """For each view, the change from its content to another one, in a segment of the epoch.

    made: the new content of each view: a hidden view that was filled for it, or rows that the epoch has written. known:
    the views with the columns that they have from then on. Raises DATABASE_DAMAGED if content can't be read.
    """
    if not made:
        return {}
    writer = SegmentWriter(db.layout.segments, epoch_prefix(epoch, db.log.writer), durable=db.layout.durable)
    changes = {}
    with closing(Reader(db.layout)) as reader:
        reader.pin(0)
        for view, content in made.items():
            written = ChangeWriter(writer, unread=False)
            for table, diff in _difference(db, known[view].as_stored, content):
                written.add(table, diff)
            changes[view] = written.finish()
    segment = writer.finish()
    return {view: change.within(segment) for view, change in changes.items() if change.blobs}


def deletes(db: Database, view: Relation, hidden: str) -> bool:
    """Whether the difference between a view and the hidden view filled for it deletes rows."""
    with closing(Reader(db.layout)) as reader:
        reader.pin(0)
        return any(bool((diff < 0).any()) for _, diff in _difference(db, view, hidden))


def _difference(db: Database, view: Relation, content: str | RelationChange) -> Iterator[tuple[pa.Table, Diff]]:
    return merged(_both(db, view, content), _schema(view))


def _both(db: Database, view: Relation, content: str | RelationChange) -> Iterator[tuple[pa.Table, Diff]]:
    for table, diff in _rows(db, view, _content(db, view.id)):
        yield table, -diff
    yield from _rows(db, view, _content(db, content) if isinstance(content, str) else content.blobs)


def _content(db: Database, relation_id: str) -> list[BlobRef]:
    """The blobs with the content of a relation."""
    checkpoint = newest_checkpoint(db.layout, db.log)
    snapshot = checkpoint.relations.get(relation_id)
    blobs = [] if snapshot is None else snapshot.blobs
    first = checkpoint.moment.transaction if snapshot is None else snapshot.upto
    for number in range(first + 1, db.log.head() + 1):
        change = db.log.read(number).relations.get(relation_id)
        blobs += [] if change is None else change.blobs
    return blobs


def _rows(db: Database, view: Relation, blobs: Iterable[BlobRef]) -> Iterator[tuple[pa.Table, Diff]]:
    """The rows of blobs with the columns of `view`, as changes."""
    schema = _schema(view)
    for blob in blobs:
        table, diff = db.segments.read_change(blob)
        yield fitted(table, schema, view.fills).cast(schema), diff


def _schema(view: Relation) -> pa.Schema:
    return arrow_schema(view.columns, positional=False)
