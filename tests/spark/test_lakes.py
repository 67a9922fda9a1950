"""Tables of lakes on Spark: as sources, and those that sinks have written, as Spark's own readers find them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from scripts.servers.archives import ServerUnavailableError, fetch
from scripts.servers.spark import SPARK_LAKES
from tests.lakes import compact_iceberg, sql_catalog
from tests.servers import UNAVAILABLE
from tests.unit.sinks import test_delta, test_iceberg
from tests.unit.sinks.databasetargets import is_done, wait

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters

pytestmark = pytest.mark.spark
READ = """
import json, sys
from pyspark.sql import SparkSession
jars, *places = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
builder = builder.config("spark.sql.session.timeZone", "UTC")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
spark = builder.getOrCreate()
for form, place in zip(places[::2], places[1::2]):
    rows = spark.read.format(form).load(place).orderBy("id").collect()
    print("ROWS", json.dumps([[None if v is None else str(v) for v in row] for row in rows]))
"""


def read_by_spark(*tables: str) -> list[list[list[str | None]]]:
    """All rows of each table, as texts. tables: a form and a place of each."""
    try:
        jars = ",".join(map(str, fetch(SPARK_LAKES).glob("*.jar")))
    except ServerUnavailableError as error:
        pytest.skip(f"Spark's readers of lakes {UNAVAILABLE}{error}")
    ended = subprocess.run([sys.executable, "-c", READ, jars, *tables], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line.removeprefix("ROWS ")) for line in ended.stdout.splitlines() if line.startswith("ROWS ")]


def numbers(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "p": [f"p{i % 3}" for i in ids], "x": [i / 2 for i in ids]})


@pytest.mark.slow
def test_tables_of_lakes_are_read_on_spark(tmp_path: Path) -> None:
    """Sources, of which a compaction changes nothing, and tables that follow what is deleted."""
    lake, changing = tmp_path / "lake", tmp_path / "changing"
    write_deltalake(lake, numbers(0, 500), partition_by=["p"])
    write_deltalake(changing, numbers(0, 500), partition_by=["p"])
    catalog = sql_catalog(tmp_path)
    catalog.create_namespace("marts")
    grown = catalog.create_table("marts.grown", numbers(0, 1).schema)
    grown.append(numbers(0, 500))
    kept = catalog.create_table("marts.kept", numbers(0, 1).schema)
    kept.append(numbers(0, 500))
    iceberg = {**test_iceberg.options(tmp_path), "create_table_if_not_exists": None, "table.name": None}
    options = ", ".join(f"{n} = '{v}'" for n, v in iceberg.items() if v)
    sums = "SELECT count(*), sum(x) FROM"
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        connection.execute(f"""
            CREATE SOURCE s WITH (connector = 'deltalake', location = '{lake}');
            CREATE TABLE t (*, PRIMARY KEY (id))
                WITH (connector = 'deltalake', location = '{changing}', on_delete = 'follow');
            CREATE SOURCE g WITH ({options}, table.name = 'grown');
            CREATE TABLE k (*, PRIMARY KEY (id)) WITH ({options}, table.name = 'kept', on_delete = 'follow');
            CREATE MATERIALIZED VIEW v AS SELECT s.id, s.p, s.x + t.x AS x FROM s JOIN t ON s.id = t.id;
            CREATE MATERIALIZED VIEW w AS SELECT g.id, g.p, g.x + k.x AS x FROM g JOIN k ON g.id = k.id;
            FLUSH
        """)
        for view in "vw":
            assert connection.execute(f"{sums} {view}").fetchone() == (500, sum(range(500)))
        DeltaTable(lake).optimize.compact()
        write_deltalake(lake, numbers(500, 100), mode="append")
        DeltaTable(changing).delete("id % 2 = 1")
        grown.append(numbers(500, 100))
        compact_iceberg(grown)
        kept.delete("id >= 250")
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        connection.execute("FLUSH")
        assert connection.execute(f"{sums} v").fetchone() == (250, sum(range(0, 500, 2)))
        assert connection.execute(f"{sums} w").fetchone() == (250, sum(range(250)))
        write_deltalake(changing, numbers(500, 100), mode="append")
        kept.append(numbers(500, 100))
        connection.execute("CREATE MATERIALIZED VIEW n AS SELECT p, count(*) AS n FROM s GROUP BY p")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT p, count(*) AS n FROM g GROUP BY p; FLUSH")
        came = sum(range(500, 600))
        assert connection.execute(f"{sums} v").fetchone() == (350, sum(range(0, 500, 2)) + came)
        assert connection.execute(f"{sums} w").fetchone() == (350, sum(range(250)) + came)
        for view in "nm":
            found = sorted(connection.execute(f"SELECT * FROM {view}").fetchall())
            assert found == [("p0", 200), ("p1", 200), ("p2", 200)]


@pytest.mark.slow
def test_spark_reads_what_sinks_have_merged(tmp_path: Path) -> None:
    """Two sinks of one view on Spark: into Delta and into Iceberg."""
    iceberg = ", ".join(f"{n} = '{v}'" for n, v in test_iceberg.options(tmp_path).items())
    keyed = "type = 'upsert', primary_key = 'id'"
    with watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE names (id int PRIMARY KEY, name varchar);
            CREATE TABLE amounts (id int PRIMARY KEY, amount numeric(10, 2), at timestamptz);
            CREATE MATERIALIZED VIEW v AS SELECT n.id, name, amount, at FROM names n LEFT JOIN amounts a ON a.id = n.id;
            CREATE SINK i FROM v WITH ({iceberg}, {keyed});
            CREATE SINK d FROM v WITH (connector = 'deltalake', location = '{tmp_path}/delta', {keyed},
                create_table_if_not_exists = 'true', partition_by = 'name');
            INSERT INTO names SELECT i, 'n' || i % 3 FROM generate_series(1, 30) AS g(i);
            INSERT INTO amounts SELECT i, i * 1.5, '2024-05-06 07:08:09.123456+00' FROM generate_series(1, 20) AS g(i);
            FLUSH
        """)
        wait(connection, is_done)
        connection.execute("DELETE FROM names WHERE id < 5; UPDATE amounts SET amount = -1 WHERE id % 2 = 0; FLUSH")
        session = connection._session
        for relation in session.catalog.relations.values():
            assert session.database.service(SinkWriters).wait(relation.id, 120)
        rows = connection.execute("SELECT * FROM v ORDER BY id").fetchall()
    wanted = [
        [str(i), name, None if amount is None else str(amount), None if at is None else f"{at:%Y-%m-%d %H:%M:%S.%f}"]
        for i, name, amount, at in rows
    ]
    assert len(wanted) == 26
    metadata = test_iceberg.read(tmp_path).metadata_location
    assert read_by_spark("delta", str(tmp_path / "delta"), "iceberg", metadata) == [wanted, wanted]
    assert len(test_delta.content(tmp_path / "delta")) == len(test_iceberg.content(tmp_path)) == 26
