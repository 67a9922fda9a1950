"""EXPLAIN ANALYZE: what the operators of a view have done, and what a query does."""

from __future__ import annotations

import json

import pytest

import watersmeet
from watersmeet.runtime import epochstatus

SHOP = """
CREATE TABLE o (id int PRIMARY KEY, c int, price int);
CREATE TABLE c (id int PRIMARY KEY, name varchar);
CREATE MATERIALIZED VIEW joined AS SELECT o.id, c.name, o.price FROM o JOIN c ON o.c = c.id;
CREATE MATERIALIZED VIEW names AS SELECT o.id, c.name FROM o JOIN c ON o.c = c.id WHERE o.price > 10;
CREATE MATERIALIZED VIEW totals AS SELECT name, sum(price) AS total FROM joined GROUP BY name;
INSERT INTO c VALUES (1, 'x'), (2, 'y'), (3, 'z');
INSERT INTO o VALUES (1, 1, 5), (2, 1, 20), (3, 2, 30), (4, 9, 40);
FLUSH;
INSERT INTO o VALUES (5, 1, 50);
DELETE FROM o WHERE id = 3;
FLUSH;
"""


def lines(connection, sql):
    return [row[0] for row in connection.execute(sql).fetchall()]


def analyzed(connection, name):
    return json.loads("\n".join(lines(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) MATERIALIZED VIEW {name}")))


def nodes(plan):
    return [plan, *(n for child in plan["children"] for n in nodes(child))]


@pytest.fixture
def shop(connection):
    for _ in connection.execute_script(SHOP):
        pass
    return connection


def test_a_join_with_known_rows(shop):
    found = analyzed(shop, "joined")
    tree = nodes(found["plan"])
    by_name = {n["name"]: n["metrics"] for n in tree}
    # Rows of both sides: 4, 2 of the second epoch, 3; out: 3, then one more and one less.
    join = by_name["StreamHashJoin"]
    assert (join["rows_in"], join["rows_out"], join["made_rows"]) == (4 + 2 + 3, 3 + 2, 3 + 2)
    assert join["fan_out"] == pytest.approx(5 / 9)
    assert (by_name["StreamMaterialize"]["rows_in"], by_name["StreamMaterialize"]["rows_out"]) == (5, 5)
    kept = sorted(n["metrics"]["state_rows"] for n in tree if n["name"] == "StreamArrange")
    assert kept[0] == 3
    scans = {n["fields"]["table"]: n["metrics"]["rows_out"] for n in tree if n["name"] == "StreamTableScan"}
    assert scans == {"o": 6, "c": 3}
    # Times are of this machine: there are some, and they add up.
    own = sum(n["metrics"].get("took_us", 0) for n in tree)
    assert 0 < own == found["operators_us"] <= found["tasks_us"] <= found["time_us"]
    assert 0 < sum(n["metrics"].get("share", 0) for n in tree) <= 1
    assert join["rows_out_per_epoch"] == 5 / found["epochs"]
    assert join["rows_out_per_second"] == pytest.approx(5 / found["seconds"])


def test_who_shares_an_operator(shop):
    shared = {(n["name"], n["fields"].get("table"), *n["shared_with"]) for n in nodes(analyzed(shop, "joined")["plan"])}
    assert shared >= {
        ("StreamTableScan", "o", "names"),
        ("StreamTableScan", "c", "names"),
        ("StreamArrange", None, "names"),
        ("StreamHashJoin", None),
    }
    # A view that another one reads has its own operators: only what comes out of it is told, and it shares nothing.
    root = analyzed(shop, "totals")["plan"]
    (leaf,) = [n for n in nodes(root) if not n["children"]]
    assert (leaf["fields"]["table"], leaf["metrics"]["rows_out"], leaf["shared_with"]) == ("joined", 5, [])
    assert "took_us" not in leaf["metrics"]


def test_the_text_has_a_line_for_each_operator(shop):
    text = lines(shop, "EXPLAIN ANALYZE joined")
    assert text[0].startswith('Materialized view "joined" in its last ')
    head = text[3]
    assert head.split("  operator")[0].split() == [
        "ms/epoch", "share", "rows", "in", "rows", "out", "out/epoch", "out/s", "fan-out", "state", "rows", "state",
        "bytes",
    ]  # fmt: skip
    place = head.index("operator")
    trees = [line[place:] for line in text[4:]]
    assert trees[0] == "StreamMaterialize"
    assert trees[-3:] == [
        "(other operators)",
        "(reading, decoding and keeping)",
        "(starting tasks, writing files)",
    ]
    assert {t.lstrip("├─└│ ") for t in trees[1:-3]} >= {
        "StreamHashJoin { type: Inner, predicate: o.c = c.id }",
        "StreamTableScan { table: o, shared_with: [names] }",
        "StreamTableScan { table: c, shared_with: [names] }",
    }
    assert "columns:" not in "".join(trees)
    assert "exprs: [o.id, c.name, o.price]" in "".join(lines(shop, "EXPLAIN ANALYZE VERBOSE joined"))
    none = lines(shop, "EXPLAIN ANALYZE (DURATION_SECS 0) joined")
    assert none[:3] == ['Materialized view "joined": no epoch has run it in this time', "", "StreamMaterialize"]


def test_an_operator_that_is_read_twice_is_shown_once(connection, run):
    run("""CREATE TABLE t (a int, b int);
           CREATE MATERIALIZED VIEW v AS SELECT b FROM t WHERE b > 2 UNION ALL SELECT b FROM t WHERE b < 9;
           INSERT INTO t VALUES (1, 2), (1, 3); FLUSH""")
    tree = nodes(analyzed(connection, "v")["plan"])
    ids = [n["id"] for n in tree if n["metrics"]]
    assert len(ids) == len(set(ids))
    assert any(n["shown_before"] for n in tree)
    assert any("[shown above]" in line for line in lines(connection, "EXPLAIN ANALYZE v"))


def test_a_process_that_reads_sees_the_same(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as writer:
        for _ in writer.execute_script(SHOP):
            pass
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            for name in ("joined", "totals"):
                assert analyzed(reader, name) == analyzed(writer, name)


def test_what_has_no_operators(shop, fails):
    assert fails("EXPLAIN ANALYZE o").message == 'table "o" has no operators that run'
    found = fails("EXPLAIN ANALYZE TABLE joined")
    assert (found.condition, found.hint) == ("CATALOG_TYPE_MISMATCH", "Use EXPLAIN ANALYZE MATERIALIZED VIEW.")
    assert fails("EXPLAIN ANALYZE joint").hint == 'Did you mean "joined"?'
    assert fails("EXPLAIN ANALYZE (FORMAT DOT) joined").condition == "FEATURE_NOT_SUPPORTED"


def test_a_sink_is_its_query(shop, run, tmp_path):
    run(f"""CREATE SINK s AS SELECT id FROM o WHERE price > 10
            WITH (connector = 'fs', fs.path = '{tmp_path}', type = 'append-only', force_append_only = 'true')
            FORMAT PLAIN ENCODE JSON""")
    text = lines(shop, "EXPLAIN ANALYZE SINK s")
    assert text[0].startswith('Sink "s"')
    assert any("StreamFilter { predicate: (o.price > 10:Int32) }" in line for line in text)


def test_queries_run_and_tell_what_duckdb_did(shop, fails):
    text = "\n".join(lines(shop, "EXPLAIN ANALYZE SELECT name, count(*) FROM joined GROUP BY name"))
    assert "HASH_GROUP_BY" in text or "PERFECT_HASH" in text
    assert "_watersmeet" not in text.split("TABLE_SCAN")[0]
    plan = json.loads("\n".join(lines(shop, "EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM joined")))
    assert plan["children"]
    assert fails("EXPLAIN ANALYZE SELECT CAST(name AS int) FROM joined").condition == "INVALID_VALUE"
    assert fails("EXPLAIN ANALYZE SELECT nope FROM joined").condition == "UNDEFINED_COLUMN"


def test_the_text_tells_of_merges_that_wait(shop, monkeypatch):
    assert not any("merges under way" in line for line in lines(shop, "EXPLAIN ANALYZE MATERIALIZED VIEW joined"))
    sizes = epochstatus.StateManifest.merge_debt_bytes
    monkeypatch.setattr(epochstatus.StateManifest, "merge_debt_bytes", lambda self, i: sizes(self, i) + 1000)
    kept = [n for n in nodes(analyzed(shop, "joined")["plan"]) if n["metrics"] and n["metrics"].get("merge_debt_bytes")]
    told = [t for t in lines(shop, "EXPLAIN ANALYZE MATERIALIZED VIEW joined") if "merges under way" in t]
    assert told == [f"Of the state {1000 * len(kept):,} bytes wait for merges under way"]
