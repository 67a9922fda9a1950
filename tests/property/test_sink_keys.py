"""Sinks whose keys only data can prove: a shared key stops the sink by name, and never delivers one of several rows.

Law: a sink that runs has delivered exactly its relation. It stops if the newest commit has rows that share its key, and
resumes once none do. With on_conflict it always has the first row of each key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import watersmeet
from tests.thorough import mostly_slow
from tests.unit.sinks.conftest import connect, memory, path, settle, shown  # noqa: F401 - fixtures
from tests.waiting import until
from watersmeet.connectors.registry import SINKS
from watersmeet.sinkwriters import batches

Rows = list[tuple[Any, ...]]

SOURCES = {
    "of_table": "FROM t",
    "of_view": "FROM w",
    "of_union": "AS SELECT k, v FROM t UNION ALL SELECT k, v FROM t WHERE v = 3",
    "of_join": "AS SELECT t.k, u.v FROM t JOIN u USING (v)",
}
FIRST = {"of_first": "FROM t", "of_first_row": "AS SELECT k, v FROM t UNION ALL SELECT v, k FROM t"}
#: Keys that the plan proves.
PROVEN = {"of_groups": "AS SELECT k, min(v) AS v FROM t GROUP BY k", "of_top": "AS SELECT DISTINCT ON (k) k, v FROM t"}


def expected(t: Rows, u: Rows) -> dict[str, Rows]:
    union = [*t, *[r for r in t if r[1] == 3]]
    both = [*t, *[(v, k) for k, v in t]]
    return {
        "of_table": t,
        "of_view": t,
        "of_union": union,
        "of_join": [(k, v) for k, v in t for (w,) in u if v == w],
        "of_first": [(k, max(v for j, v in t if j == k)) for k in {k for k, _ in t}],
        "of_first_row": [(k, max(v for j, v in both if j == k)) for k in {k for k, _ in both}],
        "of_groups": [(k, min(v for j, v in t if j == k)) for k in {k for k, _ in t}],
    }


def stop_of(name: str, rows: Rows) -> str | None:
    """The message with which a sink stops; None if it runs."""
    keys = Counter(k for k, _ in rows)
    several = sorted(k for k, n in keys.items() if n > 1)
    if name not in SOURCES or not several:
        return None
    return f'{keys[several[0]]} rows of sink "{name}" share its key: (k) = ({several[0]})'


def is_so(row: dict[str, Any], stop: str | None) -> bool:
    return row["state"] == "running" if stop is None else row["state"] == "stopped" and stop in row["detail"]


@pytest.mark.parametrize("seed", mostly_slow(range(8), 2))
def test_sinks_stop_at_shared_keys_and_never_deliver_one_of_them(
    seed: int,
    memory: Any,  # noqa: F811
    connect: Callable[..., watersmeet.Connection],  # noqa: F811
    settle: Callable[..., None],  # noqa: F811
    shown: Callable[..., dict[str, dict[str, Any]]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(seed)
    if seed % 2:
        monkeypatch.setattr(batches, "BATCH_ROWS", 2)
    connection = connect()
    connection.execute("CREATE TABLE t (k int, v int); CREATE TABLE u (v int)")
    connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k, v FROM t")
    t: Rows = []
    u: Rows = []
    for name, source in {**SOURCES, **PROVEN}.items():
        connection.execute(
            f"CREATE SINK {name} {source} WITH (connector = 'memory', type = 'upsert', primary_key = 'k')"
        )
    for name, source in FIRST.items():
        options = "connector = 'memory', type = 'upsert', primary_key = 'k', on_conflict = 'v DESC'"
        connection.execute(f"CREATE SINK {name} {source} WITH ({options})")
    catalog = connection._session.catalog
    watched = {r.name for r in catalog.relations.values() if getattr(r, "conflicts", "")}
    assert watched == set(SOURCES)
    stopped_once = 0
    for _ in range(14):
        for _ in range(random.randrange(1, 4)):
            k, v = random.randrange(4), random.randrange(4)
            action = random.randrange(5)
            if action < 2 and (k not in [r[0] for r in t] or random.random() < 0.3):
                connection.execute(f"INSERT INTO t VALUES ({k}, {v})")
                t.append((k, v))
            elif action == 2:
                connection.execute(f"DELETE FROM t WHERE k = {k}")
                t = [r for r in t if r[0] != k]
            elif action == 3 and (v,) not in u:
                connection.execute(f"INSERT INTO u VALUES ({v})")
                u.append((v,))
            elif action == 4:
                connection.execute(f"UPDATE t SET v = {v} WHERE k = {k}")
                t = [(j, v if j == k else w) for j, w in t]
        if random.random() < 0.3:
            connection.flush()
        if random.random() < 0.2:
            connection = connect()
        connection.flush()
        for name in SOURCES:
            connection.execute(f"ALTER SINK {name} START")
        settle(connection)
        truth = expected(t, u)
        wanted = {name: stop_of(name, rows) for name, rows in truth.items()}
        # START of a sink that is about to stop lets it try once more
        until(lambda: all(is_so(row, wanted.get(name)) for name, row in shown(connection).items()))
        for name, rows in truth.items():
            content = memory.topic(connection._session.catalog.by_name(name).target_id).content
            if wanted[name] is None:
                assert content == sorted(rows, key=repr), name
            else:
                stopped_once += 1
                assert max(Counter(k for k, _ in content).values(), default=1) == 1
        errors = [(r[0], r[1]) for r in connection.execute("SHOW ERRORS").fetchall()]
        assert {n for n, kind in errors if kind == "sink stopped"} <= {n for n, stop in wanted.items() if stop}
    assert stopped_once


@pytest.mark.parametrize("connector", sorted(SINKS))
def test_each_connector_refuses_a_shared_key(connector: str) -> None:
    """The key is checked before the options of the connector, so no server is needed."""
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (k int, v int); INSERT INTO t VALUES (1, 1), (1, 2), (2, 3); FLUSH")
        for form in ("upsert", "debezium"):
            with pytest.raises(watersmeet.Error, match=r'2 rows of sink "s" share its key: \(k\) = \(1\)') as found:
                connection.execute(
                    f"CREATE SINK s FROM t WITH (connector = '{connector}', type = '{form}', primary_key = 'k')"
                )
            assert found.value.condition == "UNIQUE_VIOLATION"
        assert not [r for r in connection._session.catalog.relations.values() if r.name != "t"]


def test_what_proves_a_key_stays(connect: Callable[..., Any], memory: Any) -> None:  # noqa: F811
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int UNIQUE)")
    for name, key in (("proven", "k"), ("watched", "v")):
        connection.execute(
            f"CREATE SINK {name} FROM t WITH (connector = 'memory', type = 'upsert', primary_key = '{key}')"
        )
    with pytest.raises(watersmeet.Error) as found:
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert found.value.condition == "DEPENDENT_OBJECTS"
    connection.execute("ALTER TABLE t DROP CONSTRAINT t_v_key")
    connection.execute("INSERT INTO t VALUES (1, 7), (2, 7)")
    connection.flush()
    connection.execute("ALTER SINK watched START")
    until(lambda: "share its key: (v) = (7)" in str(connection.execute("SHOW ERRORS").fetchall()))
    assert connection.execute("SHOW SINKS").fetchall()[0][3] == "running"


def test_a_sink_is_refused_if_rows_share_its_key_now(connect: Callable[..., Any], memory: Any) -> None:  # noqa: F811
    connection = connect()
    connection.execute("CREATE TABLE t (k int, password varchar)")
    connection.execute("INSERT INTO t VALUES (1, 'open sesame'), (1, 'open sesame'), (NULL, 'b'), (NULL, 'b')")
    connection.flush()
    before = [*connection._session.catalog.relations]
    make = "CREATE SINK s FROM t WITH (connector = 'memory', type = '{}', primary_key = '{}'{})"
    with pytest.raises(watersmeet.Error, match=r'2 rows of sink "s" share its key: \(k\) = \(1\)') as found:
        connection.execute(make.format("upsert", "k", ""))
    assert (found.value.condition, found.value.detail) == ("UNIQUE_VIOLATION", "1 more key is shared.")
    assert found.value.span is not None
    with pytest.raises(watersmeet.Error, match=r"\(k, password\) = \(1, …\)"):
        connection.execute(make.format("debezium", "k, password", ""))
    assert [*connection._session.catalog.relations] == before
    for options, message in (
        (", on_conflict = 'nothing'", 'column "nothing" named in on_conflict does not exist'),
        (", on_conflict = 'k DOWN'", 'column "k DOWN" named in on_conflict does not exist'),
    ):
        with pytest.raises(watersmeet.Error, match=message):
            connection.execute(make.format("upsert", "k", options))
    with pytest.raises(watersmeet.Error, match="on_conflict needs a sink of type upsert or debezium"):
        connection.execute(make.format("append-only", "k", ", force_append_only = 'true', on_conflict = 'k'"))
    connection.execute(make.format("append-only", "k", ", force_append_only = 'true'"))
    connection.execute(
        make.format("upsert", "k", ", on_conflict = 'password DESC NULLS LAST'").replace("s FROM", "s2 FROM")
    )


@pytest.mark.parametrize("seed", mostly_slow(range(12), 3))
def test_sinks_into_tables_hold_back_shared_keys(
    seed: int,
    connect: Callable[..., watersmeet.Connection],  # noqa: F811
) -> None:
    """After FLUSH the table has the rows of the query, or while rows share a key, those of an earlier moment at which
    none did.
    """
    random, connection = Random(seed), connect()
    connection.execute("CREATE TABLE t (n int PRIMARY KEY, k int, v int); CREATE TABLE x (k int PRIMARY KEY, v int)")
    connection.execute("CREATE TABLE y (k int PRIMARY KEY, v int)")
    connection.execute("CREATE SINK s INTO x AS SELECT k + 0, v FROM t")
    connection.execute("CREATE SINK f INTO y AS SELECT k AS j, v FROM t WITH (on_conflict = 'v DESC')")
    t: dict[int, tuple[int, int]] = {}
    moments: list[Rows] = [[]]
    held = 0
    for _ in range(25):
        for _ in range(random.randrange(1, 4)):
            n, k, v = random.randrange(6), random.randrange(4), random.randrange(5)
            kind = random.choice(("insert", "delete", "key", "values"))
            if kind == "insert":
                connection.execute(f"INSERT INTO t VALUES ({n}, {k}, {v})")
                t[n] = k, v
            elif kind == "delete":
                connection.execute(f"DELETE FROM t WHERE n = {n}")
                t.pop(n, None)
            elif kind == "key":
                connection.execute(f"UPDATE t SET k = {k} WHERE n = {n}")
                t |= {n: (k, t[n][1])} if n in t else {}
            else:
                connection.execute(f"UPDATE t SET v = {v} WHERE k = {k}")
                t |= {n: (k, v) for n, (j, _) in t.items() if j == k}
            if len({k for k, _ in t.values()}) == len(t):
                moments.append(sorted(t.values()))
        rows = sorted(t.values())
        try:
            connection.execute("FLUSH")
        except watersmeet.Error as stopped:
            assert stopped.condition == "UNIQUE_VIOLATION" and 'rows of sink "s" share its key' in stopped.message
            assert len({k for k, _ in rows}) < len(rows)
            held += 1
        else:
            assert moments[-1] == rows
            moments = [rows]
        found = sorted(connection.execute("SELECT k, v FROM x").fetchall())
        moments = moments[moments.index(found) :]
        most = {k: max(v for j, v in rows if j == k) for k, _ in rows}
        assert sorted(connection.execute("SELECT k, v FROM y").fetchall()) == sorted(most.items())
        if random.random() < 0.1:
            connection = connect(rebuild=random.random() < 0.5)
    assert held
