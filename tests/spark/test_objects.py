"""Objects of a store on Spark: a source that reads them, and a sink that writes them."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.sinks.test_objects import content

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


def parquet(first: int, count: int) -> bytes:
    file, ids = io.BytesIO(), range(first, first + count)
    rows = pa.table({"id": pa.array(ids, pa.int32()), "k": pa.array([i % 10 for i in ids], pa.int32())})
    pq.write_table(rows, file, row_group_size=50)
    return file.getvalue()


@pytest.mark.slow
def test_a_view_over_objects_is_kept_as_objects(tmp_path, bucket):
    """Each object is read once and each row written once, in two runs."""
    come = [(0, 200), (200, 1), (201, 130)]
    for turn, (first, count) in enumerate(come):
        bucket.put(f"in/{turn}.parquet", parquet(first, count))
        if turn == 1:
            continue  # two objects in one epoch
        with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
            connection.execute(f"""
                CREATE TABLE IF NOT EXISTS names (k int PRIMARY KEY, name varchar);
                INSERT INTO names SELECT k, 'n' || k FROM generate_series(0, 8) AS g(k);
                CREATE SOURCE IF NOT EXISTS came (id int, k int)
                    WITH (connector = 's3', {bucket.options}, match_pattern = 'in/*.parquet')
                    FORMAT PLAIN ENCODE PARQUET;
                CREATE SINK IF NOT EXISTS kept AS SELECT id, name FROM came LEFT JOIN names ON came.k = names.k
                    WITH (connector = 's3', {bucket.options}, s3.path = 'out', type = 'append-only')
                    FORMAT PLAIN ENCODE PARQUET (force_append_only = 'true');
                FLUSH
            """)
            session = connection._session
            assert session.database.service(SinkWriters).wait(session.catalog.by_name("kept").id, 120)
    assert content(bucket) == [(i, f"n{i % 10}" if i % 10 < 9 else None) for i in range(331)]
