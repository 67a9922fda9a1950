"""Shares of stored runs: together they are the run, whichever way it is cut."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.kernel.kernel_tools import blob_of, delta_of, schema_of

from watersmeet.errors import Error
from watersmeet.kernel.arrays.hashing import bucket_of, bucket_start, hash_columns
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.shares import HashRange, RunRef, load
from watersmeet.system.blobs import BlobRef
from watersmeet.values.types import BIGINT


def a_run():
    """A run by column 0 and where it is stored."""
    rng = random.Random(1)
    rows = [(rng.randrange(40), rng.choice([None, 7, 8]), rng.randrange(9)) for _ in range(200)]
    run = arrange(delta_of(schema_of(BIGINT, BIGINT, BIGINT), rows), (0,))
    run.continues, run.note = True, [0, 8]
    stored = blob_of(run)
    return run, stored, RunRef(BlobRef("a.segment", 0, stored.size, run.num_rows))


def of_bucket(keys, bucket, buckets):
    return HashRange(keys, bucket_start(bucket, buckets), bucket_start(bucket + 1, buckets))


def moved(refs, keys, buckets):
    """By bucket, the references, after another change of their number. refs: by bucket, before it."""
    found = []
    for bucket in range(buckets):
        wanted = of_bucket(keys, bucket, buckets)
        parts = [r.narrowed(wanted, of_bucket(keys, b, len(refs))) for b, some in enumerate(refs) for r in some]
        found.append([p for p in parts if p is not None])
    return found


@pytest.mark.parametrize("keys", [((0,),), ((1,), (0,)), ((1, 0),)])
@pytest.mark.parametrize("counts", [(3,), (8, 3), (3, 8, 1), (2, 1)])
def test_together_they_are_the_run(keys, counts):
    run, stored, ref = a_run()
    refs = [[ref]]
    for count in counts:
        refs = moved(refs, keys, count)
        shares = {bucket: [load(r, stored) for r in some] for bucket, some in enumerate(refs)}
        every = Delta.concat([part.delta() for parts in shares.values() for part in parts])
        assert consolidate(every).columns.equals(consolidate(run.delta()).columns)
        assert sum(1 if r.share is None else r.share.part for some in refs for r in some) == pytest.approx(1)
        for bucket, parts in shares.items():
            for part in parts:
                columns = [pc.coalesce(*[part.arrays[i] for i in key]) for key in keys]
                assert set(bucket_of(hash_columns(columns), count).tolist()) <= {bucket}
                assert part.continues
    assert all(RunRef.from_json(r.to_json()) == r for some in refs for r in some)


def test_a_slice_is_not_copied_and_not_stored_again():
    run, stored, ref = a_run()
    for share in (r for some in moved([[ref]], ((0,),), 4) for r in some):
        part = load(share, stored)
        assert part.ref == share
        assert part.note == run.note
        assert part.arrays[0].buffers()[1].address - stored.address < stored.size
        assert 0.5 < share.size_bytes / part.size_bytes * run.size_bytes / stored.size < 2
    for share in (r for some in moved([[ref]], ((1,),), 4) for r in some):
        part = load(share, stored)
        assert part.num_rows in (0, run.num_rows) or part.ref is None, "what is picked out is yet to be stored"


def test_what_has_all_rows_stays_as_it_is():
    _, _, ref = a_run()
    assert moved([[], [ref], [], []], ((0,),), 2) == [[ref], []]
    assert moved(moved([[ref]], ((0,),), 3), ((0,),), 1)[0] == [s for some in moved([[ref]], ((0,),), 3) for s in some]


def test_damage_is_named():
    _, stored, ref = a_run()
    (share, *_), *_ = moved([[ref]], ((0,),), 2)
    with pytest.raises(Error, match="STATE_DAMAGED"):
        load(share._replace(blob=ref.blob._replace(rows=7)), stored)
    with pytest.raises(Error, match="STATE_DAMAGED"):
        load(share, pa.py_buffer(b"nonsense"))
