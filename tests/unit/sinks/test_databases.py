"""Tables of databases as targets: rows are there once, whatever happens when. Real servers of each system."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from tests.unit.sinks.batches import TWO, batch
from tests.unit.sinks.databasetargets import (
    KEYED,
    POINTS,
    content,
    is_done,
    target,
    wait,
    wait_for_a_waiting_one,
    written_options,
)

import watersmeet
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import RowChange, SinkOffset
from watersmeet.errors import Error
from watersmeet.system import process
from watersmeet.values.types import VARCHAR, Field


@pytest.fixture(autouse=True)
def no_hook():
    yield
    process.set_hook(None)


@pytest.fixture(
    params=[pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mysql", marks=pytest.mark.mysql)]
)
def database(request):
    """A database of each system."""
    return request.getfixturevalue(request.param)


@pytest.fixture(
    params=[
        pytest.param("own_postgres", marks=pytest.mark.postgres),
        pytest.param("own_mysql", marks=[pytest.mark.mysql, pytest.mark.slow]),
    ]
)
def own_database(request):
    """A database of each system on a server of this test alone."""
    return request.getfixturevalue(request.param)


def test_an_append_only_sink_only_adds(database):
    database.execute("CREATE TABLE kept (name text)")
    columns = (Field("name", VARCHAR),)
    sink = target(database, columns, rows="plain")
    sink.open(1)
    sink.deliver([batch(3, ("\\.",), (None,), ("",), ("x",), columns=columns, diff=[1, 1, 1, 2])])
    sink.deliver([batch(4, ("x",), ("y",), columns=columns, diff=[-1, 1])])
    assert content(database) == sorted([("\\.",), (None,), ("",), ("x",), ("x",), ("y",)], key=repr)


def test_a_server_that_is_killed_at_each_step_has_each_row_once(own_database):
    own_database.execute("CREATE TABLE kept (name text)")
    columns = (Field("name", VARCHAR),)
    wanted = [batch(commit, (f"row {commit}",), columns=columns) for commit in range(2, 2 + len(POINTS))]
    points = {p.offset.commit: point for p, point in zip(wanted, POINTS, strict=True)}

    killed = []

    def kill_at(point):
        def hook(name):
            if name == point:
                process.set_hook(None)
                own_database.server.kill()
                killed.append(point)

        process.set_hook(hook)

    offset = None
    sink = target(own_database, columns, rows="plain")
    while offset is None or offset < wanted[-1].offset:
        following = next(p for p in wanted if offset is None or p.offset > offset)
        kill_at(points.pop(following.offset.commit, None))
        try:
            offset = sink.open(1)
            for due in [p for p in wanted if offset is None or p.offset > offset][:1]:
                sink.deliver([due])
                offset = due.offset
        except Unavailable:
            own_database.server.start()
        if not own_database.server.is_running:  # it was killed behind the commit
            own_database.server.start()
            offset = sink.open(1)
    assert set(POINTS) - set(killed) <= {"database.copied"}  # rows that are only added may go straight to the table
    assert content(own_database) == sorted((f"row {p.offset.commit}",) for p in wanted)


def test_a_writer_that_was_overtaken_writes_nothing(database):
    database.execute(KEYED)
    before, after = target(database), target(database)
    before.open(1)
    before.deliver([batch(3, (1, "a"))])
    assert after.open(1) == SinkOffset(1, 3)
    with pytest.raises((Unavailable, Error)):  # its connection was ended, or its token is another
        before.deliver([batch(4, (2, "b"))])
    after.deliver([batch(4, (2, "c"))])
    assert content(database) == [(1, "a"), (2, "c")]
    # One whose connection the later writer could not end:
    before._connection = database.connect()
    before._prepare()
    with pytest.raises(Error) as fenced:
        before.deliver([batch(5, (3, "z"))])
    assert fenced.value.condition == "WRITER_FENCED"
    assert content(database) == [(1, "a"), (2, "c")]


def test_a_writer_in_the_middle_of_a_transaction_is_shut_out(database):
    """It holds the row with its offset, and would hold the next one up for ever."""
    database.execute(KEYED)
    paused, go_on = threading.Event(), threading.Event()

    def hook(name):
        if name == "database.copied" and threading.current_thread() is not threading.main_thread():
            paused.set()
            go_on.wait(60)

    process.set_hook(hook)
    before = target(database)
    before.open(1)
    ended = []

    def deliver():
        try:
            before.deliver([batch(3, (1, "a"))])
        except BaseException as problem:
            ended.append(problem)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert paused.wait(60)
    after = target(database)
    assert after.open(1) is None
    after.deliver([batch(3, (1, "b"))])
    go_on.set()
    thread.join(60)
    assert isinstance(ended[0], Unavailable)
    assert content(database) == [(1, "b")]


def test_a_unique_index_and_more_columns_do(database):
    database.execute(
        "CREATE TABLE kept (id int, name text, more int DEFAULT 5); CREATE UNIQUE INDEX of_id ON kept (id)"
    )
    sink = target(database)
    sink.open(1)
    sink.deliver([batch(3, (1, "a"))])
    assert content(database) == [(1, "a", 5)]


def test_a_row_that_the_table_refuses_stops_the_sink(database):
    database.execute("CREATE TABLE kept (id int PRIMARY KEY, name text CHECK (name <> 'bad'))")
    sink = target(database)
    sink.open(1)
    with pytest.raises(Error, match="does not take a row of sink k") as refused:
        sink.deliver([batch(3, (1, "good"), (2, "bad"))])
    assert refused.value.condition == "DELIVERY_REFUSED"
    assert "kept" in refused.value.detail  # the server's words
    assert content(database) == []


@pytest.mark.slow
def test_a_server_that_goes_away_holds_nothing_back(own_database, tmp_path):
    own_database.execute(KEYED)
    options = written_options(own_database)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id');
            INSERT INTO t VALUES (1, 'a')
        """)
        wait(connection, is_done)
        own_database.server.kill()
        connection.execute("INSERT INTO t VALUES (2, 'b'); UPDATE t SET name = 'c' WHERE id = 1")
        shown = wait(connection, lambda s: s["state"] != "running")
        assert "can't be reached" in shown["detail"]
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        own_database.server.start()
        wait(connection, is_done)
        assert content(own_database) == [(1, "c"), (2, "b")]


TEXT_KEY = (Field("id", VARCHAR), Field("name", VARCHAR))
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("kind", "one", "other"), [("char(5)", "a", "a "), ("uuid", UUID, UUID.upper())])
def test_keys_that_the_table_does_not_tell_apart_stop_the_sink(database, kind, one, other, together):
    """And nothing of the first one is changed, or deleted."""
    database.execute(f"CREATE TABLE kept (id {kind} PRIMARY KEY, name text)")
    sink = target(database, TEXT_KEY)
    sink.open(1)
    rows = [(one, "first"), (other, "second")]
    if not together:
        sink.deliver([batch(3, rows.pop(0), columns=TEXT_KEY)])
    with pytest.raises(Error) as refused:
        sink.deliver([batch(4, *rows, columns=TEXT_KEY)])
    assert refused.value.condition == "DELIVERY_REFUSED"
    if not together:
        sink.deliver([batch(4, rows[0], columns=TEXT_KEY, diff=[-1])])
    assert [name for _, name in content(database)] == ([] if together else ["first"])


CHANGED = {
    "dropped": ("DROP TABLE kept", "CREATE TABLE kept (id int PRIMARY KEY, name text)", "UNDEFINED_OBJECT"),
    "column": (
        "ALTER TABLE kept DROP COLUMN name",
        "ALTER TABLE kept ADD COLUMN name text",
        ("UNDEFINED", "CONNECTOR"),
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_table_that_changes_under_a_sink_stops_it_until_it_is_mended(database, tmp_path, what):
    broken, mended, conditions = CHANGED[what]
    database.execute(KEYED)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({written_options(database)}, type = 'upsert', primary_key = 'id')
        """)
        wait(connection, is_done)
        database.execute(broken)
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        shown = wait(connection, lambda s: s["state"] == "stopped")
        assert shown["detail"].startswith(conditions)
        database.execute(mended)
        connection.execute("INSERT INTO t VALUES (2, 'b'); ALTER SINK k START")
        wait(connection, is_done)
        assert content(database) == [(1, "a"), (2, "b")]


@pytest.mark.postgres
def test_rights_that_are_revoked_stop_the_sink_until_they_are_there_again(postgres, tmp_path):
    postgres.execute(f"{KEYED}; CREATE ROLE writer_{postgres.name} LOGIN PASSWORD 'pw'")
    role = f"writer_{postgres.name}"
    grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON kept TO {role}"
    postgres.execute(f"{grant}; GRANT CREATE ON SCHEMA public TO {role}")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        options = written_options(postgres, user=role, password="pw")
        connection.execute(f"""
            CREATE TABLE t (id int PRIMARY KEY, name varchar);
            CREATE SINK k FROM t WITH ({options}, type = 'upsert', primary_key = 'id')
        """)
        wait(connection, is_done)
        postgres.execute(f"REVOKE INSERT ON kept FROM {role}")
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        shown = wait(connection, lambda s: s["state"] == "stopped")
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON public.kept TO {role}" in shown["detail"]
        postgres.execute(grant)
        connection.execute("ALTER SINK k START")
        wait(connection, is_done)
        assert content(postgres) == [(1, "a")]
    postgres.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_nobody_adds_or_changes_rows_while_a_statement_computes(database):
    database.execute(f"{KEYED}; INSERT INTO kept VALUES (1, 'a'), (5, 'e')")
    with ThreadPoolExecutor(2) as pool:
        others = []

        def compute(keys):
            assert keys == [frozenset(["id"])]
            for change in ("INSERT INTO kept VALUES (3, 'c')", "UPDATE kept SET name = 'x' WHERE id = 1"):
                others.append(pool.submit(database.execute, change))
                wait_for_a_waiting_one(database, others[-1].done)
            assert not any(other.done() for other in others)
            return RowChange(
                TWO[:1], pa.table({"id": pa.array([1, 5], pa.int32())}), pa.table({"name": pa.array(["b", None])})
            )

        target(database, TWO[1:], rows="plain").change(compute)
        for other in others:
            other.result(60)
    assert content(database) == [(1, "x"), (3, "c"), (5, None)]
