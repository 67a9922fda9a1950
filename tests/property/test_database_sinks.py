"""Tables of PostgreSQL and MariaDB that sinks keep: what they have is what the views have, whatever fails and when."""

from __future__ import annotations

import pytest

import watersmeet
from tests.property.test_delivery import KEYS, SOURCES, History
from tests.thorough import mostly_slow
from tests.unit.sinks.databasetargets import POINTS, content, written_options
from tests.unit.sinks.processes import killed_twice, overtaken
from watersmeet.sinkwriters import batches, writers
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.system import process


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    process.set_hook(None)


@pytest.fixture(
    params=[pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mysql", marks=pytest.mark.mysql)]
)
def database(request):
    """A database of each system."""
    return request.getfixturevalue(request.param)


class DatabaseHistory(History):
    """Its sinks write tables there: those that upsert, and one that only adds."""

    def __init__(self, path, database, seed):
        super().__init__(path, seed)
        self.database = database
        self.events = 0
        database.execute("CREATE TABLE from_table (k int PRIMARY KEY, v text)")
        database.execute("CREATE TABLE from_view (k int PRIMARY KEY, v text)")
        database.execute("CREATE TABLE as_query (v varchar(9) PRIMARY KEY, n bigint)")
        database.execute("CREATE TABLE added (i int)")

    def open(self):
        is_new = not self.path.exists()
        super().open()
        if is_new:
            self.connection.execute(
                "CREATE TABLE events (i int) APPEND ONLY; CREATE SINK added FROM events WITH "
                f"({written_options(self.database, **self.named('added'))}, type = 'append-only')"
            )

    def named(self, table):
        return {"table.name" if "mysql" in type(self.database).__name__.lower() else "table": table}

    def change(self):
        choice = self.random.random()
        if choice < 0.2:
            moved = self.random.randrange(30)
            self.connection.execute(f"DELETE FROM t WHERE k = {moved + 30}")
            self.connection.execute(f"UPDATE t SET k = k + 30 WHERE k = {moved}")
        elif choice < 0.4:
            rows = ", ".join(f"({self.events + i})" for i in range(self.random.randint(1, 20)))
            self.events += rows.count("(")
            self.connection.execute(f"INSERT INTO events VALUES {rows}")
        else:
            super().change()

    def create(self, name, replaces=""):
        options = written_options(self.database, **self.named(name))
        columns = "SELECT k, v FROM t" if name == "from_table" else None
        source = f"AS {columns}" if columns else SOURCES[name][0]
        if replaces:  # the rows of the sink before would stay
            self.connection.execute(f"DROP SINK IF EXISTS {name}")
            self.database.execute(f"DELETE FROM {name}")
        self.connection.execute(
            f"CREATE SINK {name} {source} WITH ({options}, type = 'upsert', primary_key = '{KEYS[name]}')"
        )

    def check(self):
        session = self.connection._session
        for name, (_, relation) in [*SOURCES.items(), ("added", ("", "events"))]:
            sink = session.catalog.by_name(name)
            assert session.database.service(SinkWriters).wait(sink.id, 60)
            status = session.database.service(SinkWriters).status(sink.id)
            assert status.state == "running", status.problem
            columns = ", ".join(c.name for c in sink.columns)
            wanted = sorted(self.connection.execute(f"SELECT {columns} FROM {relation}").fetchall(), key=repr)
            assert content(self.database, name) == wanted
        assert content(self.database, "added") == sorted([(i,) for i in range(self.events)], key=repr)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of threads that are "killed"
@pytest.mark.parametrize("seed", mostly_slow(range(12), 0, 1))
def test_tables_have_what_the_views_have(tmp_path, database, monkeypatch, seed):
    monkeypatch.setattr(batches, "BATCH_ROWS", 5)
    monkeypatch.setattr(writers, "_GROUP_ROWS", 12)
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.002)
    DatabaseHistory(tmp_path / "db", database, seed).run()


CHANGE = "UPDATE t SET v = {0}; INSERT INTO events VALUES ({0})"


def opened(path, database):
    """A database with an upserting and an adding sink."""
    is_new = not path.exists()
    connection = watersmeet.connect(path, runtime="inprocess", parallelism=2)
    if is_new:
        names = [{"table.name": t} if "jdbc.url" in written_options(database) else {"table": t} for t in ("s", "added")]
        database.execute("CREATE TABLE s (k int PRIMARY KEY, v int); CREATE TABLE added (i int)")
        connection.execute(f"""
            CREATE TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0), (2, 0), (3, 0);
            CREATE TABLE events (i int) APPEND ONLY;
            CREATE SINK s FROM t WITH ({written_options(database, **names[0])}, type = 'upsert', primary_key = 'k');
            CREATE SINK added FROM events WITH ({written_options(database, **names[1])}, type = 'append-only')
        """)
        settle(connection)
    return connection


def settle(connection):
    connection.execute("FLUSH")
    session = connection._session
    for relation in session.catalog.relations.values():
        assert session.database.service(SinkWriters).wait(relation.id, 60)


def check(connection, database):
    for table, there in (("t", "s"), ("events", "added")):
        assert content(database, there) == sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


def points(first):
    """Those from the first one on, slow, or of the thorough tier."""
    return mostly_slow(sorted(POINTS[POINTS.index(first) :], key=lambda point: point != "database.written"), 0, 2)


@pytest.mark.parametrize("point", points("database.entered"))
def test_a_killed_process_goes_on_where_it_was(tmp_path, database, point):
    path = tmp_path / "db"
    opened(path, database).close()
    killed = killed_twice(path, point, CHANGE)
    # of what happens once in a process that begins, the thread may be through before the hook is set
    assert killed or point in ("database.entered", "database.fenced")
    with opened(path, database) as connection:
        connection.execute(CHANGE.format(9))
        settle(connection)
        check(connection, database)


@pytest.mark.parametrize("point", points("database.begun"))
def test_a_process_that_was_paused_and_overtaken_delivers_nothing_more(tmp_path, database, point):
    path = tmp_path / "db"
    opened(path, database).close()
    connection = None

    def go_on(value):
        nonlocal connection
        connection = connection or opened(path, database)
        connection.execute(CHANGE.format(value))
        settle(connection)

    overtaken(path, point, go_on, CHANGE)
    check(connection, database)
    assert {(2,), (3,)} <= {*content(database, "added")}
    connection.close()
