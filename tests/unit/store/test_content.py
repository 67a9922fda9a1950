"""Reading follows the commit log: against a Counter under random histories, loaded fresh and incrementally."""

from __future__ import annotations

import ctypes
import math
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support import CATALOG, NESTED, ORDERS, Database, catalog, change, counted, read, rows_table
from tests.soak.served import malloc_bytes
from tests.thorough import examples

from watersmeet.catalog import MaterializedView, Table
from watersmeet.errors import Error
from watersmeet.store import content as store_content
from watersmeet.store.commits import CommitLog
from watersmeet.store.content import Content
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.tables import ContentTable, Settings, connect, copied_bytes, give_back
from watersmeet.values.types import BIGINT, Field

VALUES = st.tuples(
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([None, "", "a", "é"]),
    st.sampled_from([None, 0.0, -0.0, math.nan, 1.5, math.inf]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.lists(VALUES, min_size=1, max_size=4), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 1000), min_size=1, max_size=3)),
        st.tuples(st.just("update"), st.integers(0, 1000), VALUES),
        st.tuples(st.just("epoch"), st.booleans()),
        st.tuples(st.just("compact")),
        st.tuples(st.just("read"), st.booleans()),
        st.tuples(st.just("other")),
    ),
    max_size=25,
)


def row_key(row):
    return next(iter(counted(rows_table([row]))))


class Model:
    """What the content should be: `newest` for tables, `shown` at the newest epoch."""

    def __init__(self) -> None:
        self.newest = Counter()
        self.raw = {}
        self.events = Counter()
        self.shown = {"t1": Counter(), "t2": Counter(), "m4": Counter()}
        self.at = None

    def add(self, row, diff):
        key = row_key(row)
        self.raw.setdefault(key, row)
        self.newest[key] += diff

    def pick(self, index):
        rows = sorted(self.newest.elements(), key=repr)
        return self.raw[rows[index % len(rows)]] if rows else None


@examples(60, HealthCheck.function_scoped_fixture)
@given(steps=STEPS, small_rows=st.sampled_from([0, 1 << 16]))
def test_random_histories_against_a_counter(tmp_path_factory, steps, small_rows):
    """Also as if the tables were large, which are searched in another way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("watersmeet.store.tables._SMALL_ROWS", small_rows)
        run_history(tmp_path_factory, steps)


def run_history(tmp_path_factory, steps):
    database = Database(tmp_path_factory.mktemp("db") / "x")
    follower = database.content()
    model = Model()
    try:
        for step in steps:
            run_step(database, follower, model, step)
        check(database, follower, model)
        fresh = Content(
            Layout(database.layout.root, create=False),
            CommitLog(database.layout),
            SegmentFiles(database.layout.segments),
        )
        database.open.append(fresh)
        check(database, fresh, model)
    finally:
        database.close()


def run_step(database, follower, model, step):
    kind, *args = step
    if kind == "insert":
        rows, count = args
        database.transaction(t1=[(r, count) for r in rows], t2=[(r, 1) for r in rows])
        for row in rows:
            model.add(row, count)
        model.events.update(row_key(r) for r in rows)
    elif kind in ("delete", "update"):
        indexes = args[0] if kind == "delete" else [args[0]]
        diffs = []
        for index in indexes:
            row = model.pick(index)
            if row is not None:
                model.add(row, -1)
                diffs.append((row, -1))
        if kind == "update" and diffs:
            model.add(args[1], 1)
            diffs.append((args[1], 1))
        if diffs:
            database.transaction(t1=diffs)
    elif kind == "epoch":
        # The view is a copy of the table: what changed since the last epoch, retractions before or after inserts.
        old, new = model.shown["m4"], +model.newest
        diffs = [(model.raw[k], new[k] - old[k]) for k in {*old, *new} if new[k] != old[k]]
        diffs.sort(key=lambda d: d[1], reverse=args[0])
        database.epoch(transaction=database.log.head(), m4=diffs)
        model.shown = {"t1": new, "t2": +model.events, "m4": new}
        model.at = True
    elif kind == "compact":
        database.compactor.run()
    elif kind == "read":
        check(database, follower, model, newest=args[0])
    else:
        database.epoch(transaction=database.log.head(), t3=[((1, "a", 1.0), 1)])
        model.at = True
        old, new = model.shown["m4"], +model.newest
        diffs = [(model.raw[k], new[k] - old[k]) for k in {*old, *new} if new[k] != old[k]]
        if diffs:
            database.epoch(transaction=database.log.head() - 1, m4=diffs)
        model.shown = {"t1": new, "t2": +model.events, "m4": new}


def check(database, content, model, *, newest=False):
    shown = dict(model.shown)
    if newest or model.at is None:
        shown.update(t1=+model.newest, t2=+model.events)
    assert read(content, CATALOG, "t1", "t2", "m4", newest=newest) == shown
    assert content.rows("m4") == shown["m4"].total()


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "x")
    yield found
    found.close()


def test_tables_are_shown_at_the_frontier_of_the_views(database):
    """Features: reads of one moment."""
    content = database.content()
    database.transaction(t1=[((1, "a", 1.0), 1)])
    assert read(content, CATALOG, "t1")["t1"].total() == 1  # No epoch yet: nothing to agree with.
    database.epoch(transaction=1, m4=[((1, "a", 1.0), 1)])
    database.transaction(t1=[((2, "b", 1.0), 1)])
    found = read(content, CATALOG, "t1", "m4")
    assert found["t1"] == found["m4"]
    assert read(content, CATALOG, "t1", newest=True)["t1"].total() == 2


def test_tables_are_shown_at_the_head_without_ready_views(tmp_path):
    waiting = MaterializedView("m4", "totals", CATALOG.relations["m4"].columns, ready=False)
    database = Database(tmp_path / "x", catalog(*list(CATALOG.relations.values())[:3], waiting))
    database.epoch(transaction=0, m4=[((9, "z", 1.0), 1)])
    database.transaction(t1=[((2, "b", 1.0), 1)])
    assert read(database.content(), database.catalog, "t1")["t1"].total() == 1
    database.close()


@pytest.mark.parametrize("small_rows", [0, 1 << 16])
def test_overlay_shows_own_changes_until_it_is_cleared(database, monkeypatch, small_rows):
    monkeypatch.setattr("watersmeet.store.tables._SMALL_ROWS", small_rows)
    content = database.content()
    row, other = (1, "a", 1.0), (2, "b", math.nan)
    first = database.transaction(t1=[(row, 2)])
    database.epoch(transaction=first.number)
    database.transaction(t1=[(other, 1)])
    content.overlay("t1", rows_table([row, other, other]), np.array([-1, -1, 1]))
    content.overlay("t1", rows_table([other, (3, "c", 0.0)]), np.array([-1, 1]))
    newest = read(content, CATALOG, "t1", newest=True)["t1"]
    assert newest == Counter({row: 1, (3, "c", 0.0): 1})
    assert read(content, CATALOG, "t1")["t1"] == Counter({row: 2})
    content.clear_overlay(["t1"])
    assert read(content, CATALOG, "t1", newest=True)["t1"] == Counter({row: 2, (2, "b", "nan"): 1})


def test_overlay_survives_a_move_of_its_base(database):
    content = database.content()
    row = (1, "a", 1.0)
    database.transaction(t1=[(row, 1)])
    content.overlay("t1", rows_table([row]), np.array([-1]))
    assert not read(content, CATALOG, "t1", newest=True)["t1"]
    database.epoch(transaction=database.transaction(t1=[((2, "b", 1.0), 1)]).number)
    assert read(content, CATALOG, "t1", newest=True)["t1"] == Counter({(2, "b", 1.0): 1})


def test_row_ids_stay_whatever_is_written():
    """By itself DuckDB clears deleted rows away after 16 MB of changes, of whatever table, and the others have other
    row ids then. An overlay, which knows rows by their ids, hid others than those that it replaces.
    """
    connection, count, step = connect("", Settings(2, "1GB", external_access=False)), 200_000, 50_000
    connection.execute(f"CREATE TABLE t AS SELECT i AS k, hash(i) AS h FROM range({count}) s(i)")
    for turn in range(12):
        gone = f"(k * 7 + {turn}) % {count} < {step}"
        kept = f"CREATE OR REPLACE TABLE kept AS SELECT k FROM t WHERE {gone}"
        connection.execute(f"BEGIN; {kept}; DELETE FROM t WHERE {gone}")
        connection.execute("INSERT INTO t SELECT k, hash(k) FROM kept; COMMIT")
    assert connection.execute("SELECT count(*), max(rowid) + 1 FROM t").fetchone() == (count, count + 12 * step)


def test_deleting_a_row_that_is_not_there_is_an_error_and_changes_nothing(database):
    content = database.content()
    row = (1, "a", 1.0)
    database.transaction(t1=[(row, 1)])
    before = read(content, CATALOG, "t1")
    database.transaction(t1=[(row, -2), ((5, "z", 1.0), 1)])
    for _ in range(2):
        with pytest.raises(Error, match="not there"):
            content.refresh(CATALOG, ["t1"])
    assert counted(content.query("SELECT * FROM orders")) == before["t1"]
    with pytest.raises(Error, match="not there"):
        database.compactor.run()


def test_earlier_moment_on_request(database):
    content = database.content()
    made = [database.transaction(t1=[((i, "a", 1.0), 1)]).number for i in range(5)]
    assert read(content, CATALOG, "t1")["t1"].total() == 5
    assert read(content, CATALOG, "t1", to_commit=made[1])["t1"].total() == 2
    assert read(content, CATALOG, "t1")["t1"].total() == 5


def test_intervals_are_equal_by_their_parts(tmp_path):
    """One month is not thirty days, also inside arrays and structs, in content and through a snapshot."""
    relations = catalog(Table("t1", "spans", NESTED))
    month, days = pa_interval(1, 0), pa_interval(0, 30)
    database = Database(tmp_path / "x", relations)
    content = database.content()
    first = (1, month, [month, None], {"a": -0.0, "b": days})
    second = (1, days, [days], {"a": 0.0, "b": None})
    empty = (None, None, None, None)
    database.transaction(t1=[(first, 1), (second, 1), (empty, 2)])
    database.transaction(t1=[((1, days, [days], {"a": -0.0, "b": None}), -1), (empty, -1)])
    expected = counted(rows_table([first, empty], NESTED))
    assert read(content, relations, "t1")["t1"] == expected
    database.compactor.run()
    assert read(database.content(), relations, "t1")["t1"] == expected
    database.close()


def pa_interval(months, days):
    return pa.MonthDayNano([months, days, 1000])


def test_dropped_relation_is_forgotten_and_its_name_can_be_used_again(database):
    content = database.content()
    database.transaction(t1=[((1, "a", 1.0), 1)])
    read(content, CATALOG, "t1", newest=True)
    content.drop("t1")
    again = Table("t9", "orders", CATALOG.relations["t1"].columns)
    database.catalog = CATALOG.without({"t1"}).with_relation(again)
    database.transaction(t9=[((7, "b", 1.0), 1)])
    assert read(content, database.catalog, "t9")["t9"] == Counter({(7, "b", 1.0): 1})
    assert read(content, database.catalog, "t9", newest=True)["t9"] == Counter({(7, "b", 1.0): 1})


def test_names_and_columns_with_any_characters(tmp_path):
    columns = (Field('a "b"', BIGINT), Field("_diff", BIGINT), Field("_h", BIGINT), Field("c1", BIGINT))
    relations = catalog(Table("t1", 'x"; DROP TABLE y; --', columns))
    database = Database(tmp_path / "x", relations)
    database.transaction(t1=[((1, 2, 3, 4), 1)])
    database.transaction(t1=[((1, 2, 3, 4), -1), ((5, 6, 7, 8), 2)])
    content = database.content()
    content.refresh(relations, ["t1"])
    table = content.query('SELECT * FROM "x""; DROP TABLE y; --"')
    assert table.column_names == [c.name for c in columns]
    assert table.num_rows == 2
    database.close()


def test_queries_cannot_see_python_variables_and_may_be_kept_from_files(database):
    secret = rows_table([(1, "a", 1.0)])
    content = Content(database.layout, database.log, database.segments, external_access=False)
    database.open.append(content)
    database.transaction(t1=[((1, "a", 1.0), 1)])
    assert read(content, CATALOG, "t1")["t1"].total() == secret.num_rows
    with pytest.raises(Exception, match="secret"):
        content.query("SELECT * FROM secret")
    with pytest.raises(Exception, match="disabled"):
        content.query("SELECT * FROM read_csv('/etc/passwd')")


@pytest.mark.parametrize(("width", "least_rows", "most_rows"), [(10, 60, 200), (1000, 5, 20)])
def test_space_of_deleted_rows_is_bounded_by_bytes(width, least_rows, most_rows):
    """Wide rows are cleared away sooner: a thousand of them are megabytes."""
    connection = connect("", Settings(1, "1GB", external_access=False))
    table = ContentTable(connection, ORDERS, waste_bytes=5000)
    kept, rows = 0, []
    for turn in range(30):
        before, rows = rows, [(i, "x" * width, float(turn)) for i in range(5)]
        table.apply(*change([(r, -1) for r in before] + [(r, 1) for r in rows]))
        kept = max(kept, table._deleted_rows)
    assert least_rows <= kept <= most_rows
    assert connection.execute(f"SELECT count(*) FROM {table.table}").fetchone() == (5,) == (table.rows,)


def test_many_deletions_do_not_keep_their_space(database, monkeypatch):
    monkeypatch.setattr("watersmeet.store.tables._WASTE_BYTES", 100)
    content = database.content()
    database.transaction(t1=[((i, "a", 0.0), 1) for i in range(20)])
    for turn in range(6):
        database.transaction(
            t1=[d for i in range(20) for d in (((i, "a", float(turn)), -1), ((i, "a", turn + 1.0), 1))]
        )
        assert read(content, CATALOG, "t1")["t1"] == Counter({(i, "a", turn + 1.0): 1 for i in range(20)})


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc alone says how much memory is in use")
def test_what_is_kept_does_not_grow_with_the_number_of_refreshes(database, monkeypatch):
    """DuckDB would keep 10 KB for each change of a relation, up to tens of megabytes."""
    monkeypatch.setattr("watersmeet.store.content._TIDY_REFRESHES", 50)
    content, kept = database.content(), []
    for turn in range(301):
        rows = [((turn * 20 + i, "a", 1.0), 1) for i in range(20)]
        gone = [((k - 200, name, x), -1) for (k, name, x), _ in rows if k >= 200]
        database.transaction(t1=rows + gone)
        content.refresh(CATALOG, ["t1"])
        if turn % 100 == 0:
            content.refresh(CATALOG, ["t1"])
            kept.append(malloc_bytes())
    assert content.query("SELECT count(*) AS n, min(k) AS k FROM orders").to_pylist() == [{"n": 200, "k": 5820}]
    assert kept[-1] - kept[1] < 1 << 20


def duckdbs_made(monkeypatch):
    """A list that grows with each DuckDB that is made from now on."""
    made, really = [], duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *a, **options: made.append(1) or really(*a, **options))
    return made


def test_the_next_content_has_the_duckdb_of_the_last_one_and_nothing_of_its_rows(tmp_path, monkeypatch):
    settings = Settings(1, "123MB", external_access=True)  # of nobody else
    made = duckdbs_made(monkeypatch)
    for n in range(3):
        connection = connect(str(tmp_path / str(n)), settings)
        views = "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal"
        held = f"SELECT schema_name, table_name FROM duckdb_tables() UNION ALL {views}"
        assert connection.execute(held).fetchall() == [("_watersmeet", "moment")]
        place = connection.execute("SELECT current_setting('temp_directory')").fetchone()
        assert place == (str(tmp_path / str(n)),)
        connection.execute("CREATE TABLE _watersmeet.t1 AS SELECT range AS a FROM range(100000)")
        connection.execute('CREATE VIEW "a ""view" AS FROM _watersmeet.t1; CREATE VIEW newest.v AS FROM _watersmeet.t1')
        connection.execute("SET search_path = 'newest,main'")
        give_back(connection, settings)
    assert len(made) == 1


def spilled(connection):
    connection.execute("SET memory_limit = '4MB'")
    connection.execute("CREATE TABLE _watersmeet.t1 AS SELECT hash(range) AS a FROM range(1000000)")


def with_a_table_of_a_session(connection):
    connection.execute("CREATE TEMP TABLE t (a int)")


def with_a_table_elsewhere(connection):
    connection.execute("CREATE TABLE main.t (a int)")


@pytest.mark.parametrize("use", [spilled, with_a_table_of_a_session, with_a_table_elsewhere])
def test_a_duckdb_that_is_not_as_new_serves_no_other_content(tmp_path, monkeypatch, use):
    settings = Settings(1, "124MB", external_access=True)
    made = duckdbs_made(monkeypatch)
    for _ in range(2):
        connection = connect(str(tmp_path), settings)
        use(connection)
        give_back(connection, settings)
    assert len(made) == 2


def test_the_duckdb_of_a_content_that_is_closed_while_it_is_read_serves_no_other(tmp_path, monkeypatch):
    made = duckdbs_made(monkeypatch)
    database = Database(tmp_path / "a")
    for _ in range(2):
        content = Content(database.layout, database.log, database.segments, memory_limit="125MB")
        with content.reader(CATALOG, []):
            content.close()
    assert len(made) == 2


def test_large_relations_are_loaded_when_they_are_read_often_and_there_is_room(database, monkeypatch):
    monkeypatch.setattr(store_content, "_LOADED_ROWS", 3)
    monkeypatch.setattr(store_content, "_COPIED_READS", 2)
    rows = [((i, "a", 1.0), 1) for i in range(5)]
    database.transaction(t1=rows, t2=rows)
    content = database.content()

    def loaded(*ids):
        with content.reader(CATALOG, ids) as (connection, _):
            for name in (CATALOG.relations[i].name for i in ids):
                assert connection.execute(f'SELECT count(*), count(k) FROM "{name}"').fetchone() == (5, 5)
        return {i for i in ("t1", "t2") if content.rows(i) is not None}

    one = copied_bytes(CATALOG.relations["t1"], 5)
    monkeypatch.setattr(store_content, "_COPIED_BYTES", one)
    assert loaded("t1") == set()
    assert loaded("t1") == {"t1"}
    assert loaded("t2") == {"t1"}
    assert loaded("t2") == {"t2"}, "the other had to make room"
    assert loaded("t1", "t2") == {"t2"}, "there is no room for both"
    monkeypatch.setattr(store_content, "_COPIED_BYTES", one - 1)
    assert loaded("t2") == set(), "it is too large now"
