"""Tables of Delta Lake and Iceberg that sinks keep: each of their versions is what the view was at a commit, although
the store of their files is killed between any two requests.
"""

from __future__ import annotations

import random

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from scripts.servers.s3 import REGION

import watersmeet
from tests.killedstore import KilledStore
from tests.lakes import sql_catalog
from tests.thorough import mostly_slow
from tests.unit.sinks.databasetargets import is_done
from tests.waiting import until
from watersmeet.sinkwriters import writers

KILLS = 5
SINKS = {"kept": "type = 'upsert', primary_key = 'k'", "added": "type = 'append-only'"}
QUERIES = {"kept": "SELECT k, n FROM m", "added": "SELECT i FROM events"}


class Delta:
    """Tables of Delta Lake: their logs are in the store, too."""

    def __init__(self, store, folder):
        del folder
        self.where = f"s3://{store.bucket.name}/"
        access, secret = store.bucket.keys
        self.shared = (
            f"connector = 'deltalake', s3.endpoint = '{store.url}', s3.region = '{REGION}', "
            f"s3.access.key = '{access}', s3.secret.key = '{secret}'"
        )
        self.storage = {"AWS_ENDPOINT_URL": store.url, "AWS_REGION": REGION, "AWS_ALLOW_HTTP": "true",
                        "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}  # fmt: skip

    def options(self, name):
        return f"{self.shared}, location = '{self.where}{name}'"

    def versions(self, name):
        """The rows of each version, from the first one on."""
        table = DeltaTable(self.where + name, storage_options=self.storage)
        newest = table.version()
        for version in range(newest + 1):
            table.load_as_version(version)
            yield sorted(tuple(r.values()) for r in table.to_pyarrow_table().to_pylist())


class Iceberg:
    """Tables of Iceberg: their catalog is a file here, all else is in the store."""

    def __init__(self, store, folder):
        access, secret = store.bucket.keys
        warehouse = f"s3://{store.bucket.name}/warehouse"
        self.shared = (
            f"connector = 'iceberg', catalog.type = 'jdbc', catalog.uri = 'jdbc:sqlite:{folder}/catalog.db', "
            f"catalog.name = 'lake', warehouse.path = '{warehouse}', database.name = 'marts', "
            f"s3.endpoint = '{store.url}', s3.region = '{REGION}', s3.access.key = '{access}', "
            f"s3.secret.key = '{secret}'"
        )
        self.storage = {"s3.endpoint": store.url, "s3.region": REGION, "s3.access-key-id": access,
                        "s3.secret-access-key": secret}  # fmt: skip
        self.folder = folder

    def options(self, name):
        return f"{self.shared}, table.name = '{name}'"

    def versions(self, name):
        catalog = sql_catalog(self.folder)
        catalog.properties.update(self.storage)
        table = catalog.load_table(f"marts.{name}")
        places = [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]
        for place in places:
            version = StaticTable.from_metadata(place, self.storage)
            yield sorted(tuple(r.values()) for r in version.scan().to_arrow().to_pylist())


def done(connection):
    cursor = connection.execute("SHOW SINKS")
    names = [c[0] for c in cursor.description]
    return all(is_done(dict(zip(names, row, strict=True))) for row in cursor.fetchall())


@pytest.mark.parametrize("kind", [Delta, Iceberg])
@pytest.mark.parametrize("seed", mostly_slow(range(6), 0, 1))
def test_tables_in_a_store_that_is_killed(tmp_path, own_bucket, monkeypatch, kind, seed):
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.1)
    fates, changes = random.Random(f"fates {seed}"), random.Random(seed)
    next_at, is_any, living = 0, True, True

    def dies(number, method, path):
        nonlocal next_at, is_any
        is_commit = method == "PUT" and ("/_delta_log/" in path or ".metadata.json" in path)
        if living or number < next_at or store.kills == KILLS or not (is_any or is_commit):
            return None
        next_at, is_any = number + fates.randint(1, 40), fates.random() < 0.5
        return fates.choice(["before", "after"])

    store = KilledStore(tmp_path, own_bucket, dies)
    try:
        lake = kind(store, tmp_path)
        with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
            connection.execute("""
                CREATE TABLE t (k int PRIMARY KEY, v int);
                CREATE TABLE events (i int) APPEND ONLY;
                CREATE MATERIALIZED VIEW m AS SELECT t.k, count(e.i) AS n FROM t LEFT JOIN events e ON e.i % 7 = t.v
                GROUP BY t.k
            """)
            for name, how in SINKS.items():
                source = "FROM m" if name == "kept" else "FROM events"
                options = f"{lake.options(name)}, {how}, create_table_if_not_exists = 'true'"
                connection.execute(f"CREATE SINK {name} {source} WITH ({options})")
            living, count, states = False, 0, {name: [[]] for name in SINKS}
            while store.kills < KILLS or count < 40:
                rows = ", ".join(f"({changes.randrange(20)}, {changes.randrange(7)})" for _ in range(5))
                more = ", ".join(f"({count + i})" for i in range(changes.randint(1, 9)))
                count += more.count("(")
                for statement in changes.sample(
                    [
                        f"INSERT INTO t VALUES {rows}",
                        f"INSERT INTO events VALUES {more}",
                        f"DELETE FROM t WHERE k = {changes.randrange(20)}",
                    ],
                    3,
                ):
                    connection.execute(f"{statement}; FLUSH")
                    for name, query in QUERIES.items():
                        states[name].append(sorted(connection.execute(query).fetchall()))
                if changes.random() < 0.5:
                    until(lambda: done(connection))
            living = True
            until(lambda: done(connection))
        for name in SINKS:
            found = list(lake.versions(name))
            assert found[-1] == states[name][-1], name
            # In the order of commits: no version goes back, and nothing is there twice.
            at = 0
            for version in found:
                at = states[name].index(version, at)
    finally:
        store.close()
