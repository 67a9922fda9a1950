"""CREATE RANDOM STREAM of Timeplus: rows with random values while something reads them."""

from __future__ import annotations

import pytest
from tests.waiting import until

import watersmeet
from watersmeet import Error

DEVICES = """
CREATE RANDOM STREAM devices (
    device string DEFAULT 'device' || to_string(rand() % 4), pair int DEFAULT rand() % 7 - rand() % 7,
    temperature float64 DEFAULT rand_uniform(20, 30), at datetime64(3) DEFAULT now64(3), seven int DEFAULT 7,
    small uint8, whole int, name string DEFAULT random_printable_ascii(5)
) SETTINGS eps = 20000
"""


@pytest.fixture
def connection():
    with watersmeet.connect(dialect="timeplus", runtime="inprocess") as found:
        yield found


def test_rows_have_the_declared_values_and_views_follow(connection):
    connection.execute(DEVICES)
    connection.execute("CREATE MATERIALIZED VIEW all_rows AS SELECT * FROM devices")
    grouped = "SELECT device, count() AS n FROM all_rows GROUP BY device"
    connection.execute(f"CREATE MATERIALIZED VIEW counted AS {grouped} SETTINGS seek_to = 'earliest'")
    columns = [c[0] for c in connection.execute("SELECT * FROM table(all_rows)").description]
    assert columns == ["device", "pair", "temperature", "at", "seven", "small", "whole", "name", "_tp_time"]

    def counts(query):
        return sorted(connection.execute(query).fetchall())

    def has_rows():
        connection.flush()
        return counts("SELECT count() FROM table(all_rows)")[0][0] > 2000

    until(has_rows)
    both = "SELECT a.device, a.n, b.n FROM table(counted) AS a JOIN (SELECT device, count() AS n FROM table(all_rows) "
    found = counts(f"{both} GROUP BY device) AS b ON a.device = b.device")
    assert [device for device, _, _ in found] == [f"device{i}" for i in range(4)]
    assert all(n == m for _, n, m in found)
    least = "min(pair), min(small), min(whole), min(temperature), min(length(name)), min(seven)"
    (low,) = counts(f"SELECT {least} FROM table(all_rows)")
    (high,) = counts(f"SELECT {least.replace('min(', 'max(')} FROM table(all_rows)")
    assert (low[0], high[0]) == (-6, 6)
    assert (low[1], high[1]) == (0, 255)
    assert 0 <= low[2] < 1 << 28 < high[2] < 1 << 31
    assert 20 <= low[3] < 21 < 29 < high[3] < 30
    assert low[4:] == high[4:] == (5, 7)


def test_calls_differ_and_a_call_is_the_same_in_all_columns_that_name_it(connection):
    connection.execute("CREATE RANDOM STREAM r (a int DEFAULT rand() % 1000, b int DEFAULT rand() % 1000)")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT sum(a = b) AS same, count() AS n FROM r")

    def shown():
        connection.flush()
        found = connection.execute("SELECT same, n FROM table(v)").fetchall()
        return found[0] if found and found[0][1] > 100 else None

    until(shown)
    same, count = shown()
    assert same < count / 2


def test_a_column_reads_the_values_of_earlier_columns(connection):
    columns = "price float64 DEFAULT round(rand_normal(150, 4), 2), twice float64 DEFAULT price * 2"
    kinds = (
        "k enum8('a' = 1, 'b' = 2) DEFAULT multi_if(rand() % 2 = 0, 'a', 'b'), u string DEFAULT if(k = 'a', 'A', 'B')"
    )
    number = "n int64 DEFAULT rand_poisson(3)"
    connection.execute(f"CREATE RANDOM STREAM r ({columns}, {kinds}, {number}) SETTINGS eps = 5000")
    good = "twice = price * 2 AND u = upper(k)"
    items = f"count_if({good}) AS good, count() AS c, avg(n) AS mean, uniq(k) AS kinds"
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT {items} FROM r")

    def shown():
        connection.flush()
        found = connection.execute("SELECT good, c, mean, kinds FROM table(v)").fetchall()
        return found[0] if found and found[0][1] > 2000 else None

    until(shown)
    right, count, mean, kinds_seen = shown()
    assert right == count
    assert 2.5 < mean < 3.5
    assert kinds_seen == 2


@pytest.mark.parametrize(
    ("create", "condition"),
    [
        ("(i int) SETTINGS eps = 0", "INVALID_PARAMETER"),
        ("(i int) SETTINGS eps = 'many'", "INVALID_PARAMETER"),
        ("(i int) SETTINGS rate = 1", "FEATURE_NOT_SUPPORTED"),
        ("(i int ALIAS rand())", "FEATURE_NOT_SUPPORTED"),
        ("(s string DEFAULT random_string(rand()))", "FEATURE_NOT_SUPPORTED"),
        ("(at datetime DEFAULT now() - 1h)", "FEATURE_NOT_SUPPORTED"),
        ("(e enum8('a' = 1))", "FEATURE_NOT_SUPPORTED"),
        ("(j json)", "CONNECTOR_OPTION"),
        ("(i int DEFAULT no_function(rand()))", "UNDEFINED_FUNCTION"),
        ("(i int DEFAULT other + 1)", "UNDEFINED_COLUMN"),
    ],
)
def test_what_can_not_be_random_is_refused(connection, create, condition):
    with pytest.raises(Error) as refused:
        connection.execute(f"CREATE RANDOM STREAM r {create}")
    assert refused.value.condition == condition
    assert refused.value.span is not None
