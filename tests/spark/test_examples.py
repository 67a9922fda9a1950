"""The examples for people on Spark Connect: a pipeline, and a notebook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import DeltaTable
from scripts.servers.archives import ServerUnavailableError, fetch
from scripts.servers.packages import fetch_packages
from scripts.servers.spark import SPARK_LAKES
from tests.servers import UNAVAILABLE
from tests.spark.cluster import connect_server
from tests.unit.frames.query import at

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOK_PINS = ROOT / "requirements" / "notebook.txt"


def file_of(folder: Path, number: int, last: str, *rows: tuple[str, float, float]) -> None:
    """One more file of a stream of symbols, times and values."""
    folder.mkdir(exist_ok=True)
    symbols, seconds, values = zip(*rows, strict=True)
    times = pa.array([at(s).replace(tzinfo=UTC) for s in seconds], pa.timestamp("us", "UTC"))
    table = pa.table({"symbol": pa.array(symbols), "ts": times, last: pa.array(values)})
    pq.write_table(table, folder / f"{number}.parquet")


def run_pipeline(folder: Path, remote: str, sink: str) -> None:
    """Runs the example once, with its files in `folder`."""
    own = folder / "pipeline"
    if not own.exists():
        shutil.copytree(EXAMPLES / "pipeline", own, ignore=shutil.ignore_patterns("__pycache__"))
        spec = (own / "spark-pipeline.yml").read_text(encoding="utf-8")
        spec = spec.replace("/tmp/watersmeet-pipeline", str(folder)).replace("sink: parquet", f"sink: {sink}")
        (own / "spark-pipeline.yml").write_text(spec, encoding="utf-8")
    home = Path(pyspark.__path__[0])
    done = subprocess.run(
        [str(home / "bin" / "spark-pipelines"), "--remote", remote, "run", "--spec", str(own / "spark-pipeline.yml")],
        env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_pipeline_with_a_table_and_a_delta_sink(tmp_path):
    try:
        jars = ",".join(map(str, fetch(SPARK_LAKES).glob("*.jar")))
    except ServerUnavailableError as error:
        pytest.skip(f"Spark's Delta Lake {UNAVAILABLE}{error}")
    delta = {
        "spark_jars": jars,
        "spark_sql_extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark_sql_catalog_spark__catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    file_of(tmp_path / "trades", 0, "price", ("A", 10, 101.0), ("B", 5, 50.0), ("A", 20, 103.0))
    file_of(tmp_path / "quotes", 0, "bid", ("A", 9, 100.0), ("A", 19, 102.0))
    with connect_server(tmp_path, **delta) as remote:
        run_pipeline(tmp_path, remote, "delta")
    rows = f"SELECT symbol, price, bid FROM read_parquet('{tmp_path}/warehouse/priced_trades/*.parquet') ORDER BY ALL"
    assert duckdb.sql(rows).fetchall() == [("A", 101.0, 100.0), ("A", 103.0, 102.0), ("B", 50.0, None)]
    changes = DeltaTable(str(tmp_path / "counts")).to_pyarrow_table()
    assert sorted(map(tuple, map(dict.values, changes.to_pylist()))) == [("A", 2, 103.0, 1), ("B", 1, 50.0, 1)]


@pytest.mark.slow
def test_the_notebook(tmp_path):
    pins = NOTEBOOK_PINS.read_text(encoding="utf-8")
    version = next(line.split("==")[1].split()[0] for line in pins.splitlines() if line.startswith("nbconvert=="))
    try:
        packages = fetch_packages(f"nbconvert-{version}", pins, 30)
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))
    with connect_server(tmp_path) as remote:
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "src"), str(packages))))
        command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--output-dir", str(tmp_path)]
        done = subprocess.run(
            [*command, str(EXAMPLES / "notebook" / "orders.ipynb")],
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "SPARK_REMOTE": remote,
                "WATERSMEET_FOLDER": str(tmp_path / "work"),
                "JUPYTER_PLATFORM_DIRS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((tmp_path / "orders.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = [
        "".join("".join(o.get("text", "")) for o in c.get("outputs", ()) if o.get("name") == "stdout") for c in cells
    ]
    shown = [text.strip() for text in texts if text.strip()]
    assert shown[0] == "[(1, 'Ann'), (2, 'Bob'), (3, 'Ann')]"
    assert "'right_rows': 1" in shown[1]
