"""The examples of docs/for/pyspark.md and spark.md, of the first hour and of the README, on Spark."""

from __future__ import annotations

import pytest
from tests.pages import ROOT, Page, blocks

from watersmeet.runtime.spark import session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def spark():
    kept = session.acquire(None, 2)
    yield kept
    session.release(kept)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["for/pyspark.md", "for/spark.md", "FIRST-HOUR.md"])
def test_examples(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Page("spark").run((ROOT / "docs" / page).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_join_of_the_readme(spark, tmp_path):
    for name, row in {"orders": '{"order_id": 11, "id": 3}', "customers": '{"id": 1, "name": "Ann"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(row, encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = (b for language, b in blocks(text) if language == "python")
    assert block.startswith("# join.py\n")
    for path in ("orders", "customers", "checkpoint", "named"):  # Java has another current directory
        block = block.replace(f'"{path}"', f'"{tmp_path}/{path}"')
    before = {query.id for query in spark.streams.active}
    try:
        exec(compile(block, "README.md", "exec"), {})
        rows = [
            tuple(row) for row in spark.read.parquet(f"{tmp_path}/named").select("order_id", "name", "diff").collect()
        ]
        assert rows == [(11, None, 1)]
    finally:
        for query in spark.streams.active:
            if query.id not in before:
                query.stop()
