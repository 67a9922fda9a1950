"""Handing what operators keep to another number of buckets: references are written, no run is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Rescale
from watersmeet.circuit.placing import OTHERS, Keys, Placing
from watersmeet.errors import error
from watersmeet.kernel.arrays.hashing import bucket_start
from watersmeet.kernel.operators import STATEFUL
from watersmeet.kernel.runs.merge import level
from watersmeet.kernel.runs.shares import HASHES, HashRange, RunRef
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.runtime.database import Database
from watersmeet.runtime.output import section_of, stored_state
from watersmeet.runtime.plans import load_circuit
from watersmeet.store.commits import Commit
from watersmeet.store.packs import PackWriter, epoch_prefix

#: By "stage/bucket".
States = Mapping[str, StateManifest]


def rescaled_packs(db: Database, before: Commit, circuit: Circuit, epoch: int, mode: Rescale) -> dict[str, str]:
    """Writes a pack with the state for `circuit`: its name by "stage/bucket". before: the epoch before.

    STATE_MISMATCH if its state lacks an operator.
    """
    assert before.circuit is not None
    states = {place: stored_state(db.packs, pack, place) for place, pack in before.packs.items()}
    found = rescaled(states, load_circuit(db.layout, before.circuit), circuit, mode.placings)
    writer = PackWriter(db.layout.packs, epoch_prefix(epoch, db.log.writer), durable=db.layout.durable)
    pack = writer.finish({place: section_of(state) for place, state in found.items()})
    return dict.fromkeys(found, pack)


def rescaled(
    states: States, before: Circuit, after: Circuit, placings: Mapping[str, Mapping[str, Placing]]
) -> dict[str, StateManifest]:
    """The states of the circuit `after`, which has the operators of `before` and another number of buckets.

    placings: as in `Rescale`. STATE_MISMATCH if one of the states lacks an operator.
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
                {i: _handed(old, placings[i], bucket, after.buckets) for i, old in kept.items()}
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
    before: Sequence[_Traces], placings: Mapping[str, Placing], bucket: int, buckets: int
) -> dict[str, tuple[RunRef, ...]]:
    """What a bucket has of an operator, by trace. before: what each of the buckets had."""
    found = {}
    for name in sorted({name for traces in before for name in traces}):
        placing = placings[name if name in placings else OTHERS]
        found[name] = tuple(_refs([traces.get(name, ()) for traces in before], placing, bucket, buckets))
    return {name: refs for name, refs in found.items() if refs}


def _refs(before: Sequence[Sequence[RunRef]], placing: Placing, bucket: int, buckets: int) -> list[RunRef]:
    if placing.how == "copied":
        return list(before[0])
    if placing.how == "pooled":
        return list(dict.fromkeys(ref for refs in before for ref in refs))
    if not placing.keys:
        return list(before[0]) if bucket == 0 else []
    wanted = range_of(placing.keys, bucket, buckets)
    everywhere = HashRange(placing.keys, 0, HASHES)
    parts = []
    for number, refs in enumerate(before):
        known = everywhere if placing.how == "anywhere" else range_of(placing.keys, number, len(before))
        narrowed = (ref.narrowed(wanted, known) for ref in refs)
        parts.append([ref for ref in narrowed if ref is not None])
    return list(in_levels(parts))


def range_of(keys: Keys, bucket: int, buckets: int) -> HashRange:
    """The hashes of a bucket."""
    return HashRange(keys, bucket_start(bucket, buckets), bucket_start(bucket + 1, buckets))


def in_levels(parts: Sequence[Sequence[RunRef]]) -> Iterator[RunRef]:
    """The runs of several traces as those of one: the largest first, so that they can be merged.

    Those of each trace stay in their order: all of a key are in one trace, and newer ones may replace older ones.
    """
    waiting = [list(reversed(part)) for part in parts if part]
    while waiting:
        largest = max(waiting, key=lambda part: level(part[-1].rows))
        yield largest.pop()
        waiting = [part for part in waiting if part]
