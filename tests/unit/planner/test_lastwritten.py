"""The last row of each key, by arrival, is looked up and replaced: no other rows of the key are read. LS-10, TP-08."""

import watersmeet


def plan(dialect, setup, query):
    with watersmeet.connect(dialect=dialect, runtime="inprocess", parallelism=2) as connection:
        connection.execute(setup)
        return "\n".join(r[0] for r in connection.execute("EXPLAIN " + query).fetchall())


def test_a_table_of_a_topic():
    text = plan("lenses", "CREATE TABLE t (_key int, n int) FORMAT (INT, AVRO)", "SELECT TABLE n FROM t")
    assert "StreamUpsert { key: [t._key] }" in text
    assert "TopN" not in text
    assert "keeps the last row of every key" in text


def test_the_latest_rows_of_a_query_that_begins_now_under_filters():
    text = plan(
        "timeplus",
        "CREATE STREAM l(k int, x int); CREATE STREAM r(k int, y int)",
        (
            "CREATE MATERIALIZED VIEW v AS SELECT x, z FROM l LATEST JOIN (SELECT k, y + 1 AS z FROM r WHERE y > "
            "3) AS r ON l.k = r.k"
        ),
    )
    assert "StreamUpsert { key: [r.k] }" in text
    assert "TopN" not in text


def test_who_asks_when_rows_came_needs_all_that_says_so():
    text = plan(
        "timeplus",
        "CREATE STREAM l(k int, x int); CREATE STREAM r(k int, y int)",
        "CREATE MATERIALIZED VIEW v AS SELECT x, y FROM l ASOF JOIN r ON l.k = r.k AND l.x >= r.y",
    )
    assert "StreamUpsert" not in text


def test_versions_of_an_asof_join_are_kept_once():
    text = plan(
        "timeplus",
        "CREATE STREAM l(k int, x int); CREATE STREAM r(k int, y int)",
        (
            "CREATE MATERIALIZED VIEW v AS SELECT x, y FROM l ASOF JOIN r ON l.k = r.k AND l.x >= r.y SETTINGS "
            "keep_versions = 5"
        ),
    )
    assert "versions: 5" in text
    assert "TopN" not in text
    assert text.count("the best 5 rows of every key") == 1
