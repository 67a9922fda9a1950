"""What databases in an object store ask it for: how often, and what happens when it is gone meanwhile."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from benchmarks.requestprices import monthly_dollars
from tests.memorystore import URL, MemoryStore, forget_copies, use

import watersmeet
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.runtime.stages import _segments_of
from watersmeet.store import checkpoints, content, readers, retention
from watersmeet.store.content import Content

SETUP = """
CREATE TABLE a (k int PRIMARY KEY, x int);
CREATE TABLE b (k int, y int);
CREATE MATERIALIZED VIEW v AS SELECT a.k, x, y FROM a JOIN b ON a.k = b.k;
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    return use(monkeypatch, MemoryStore(), tmp_path)


def connect(**options):
    return watersmeet.connect(URL, runtime="inprocess", **options)


def set_up(connection):
    for _ in connection.execute_script(SETUP):
        pass


def change(connection, number):
    connection.execute("INSERT INTO a VALUES (%s, 1)", (number,))
    connection.execute("INSERT INTO b VALUES (%s, 2)", (number,))


def change_and_clean_up(connection, numbers):
    for number in numbers:
        change(connection, number)
        connection.flush()
        connection._session.database._compactor.run()


def elsewhere(action):
    """In another thread, as another process would do it."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def sent(store, commit):
    """How many requests were sent before the commit was created."""
    return store.requests.index(("create", f"db/commits/{commit.number:012}.json"))


#: How a store counts the requests that `Store` has.
PRICED = {"put": "PUT", "create": "PUT", "stat": "HEAD", "list": "LIST", "get": "GET", "range": "GET"}


def priced(asked):
    """How many requests of each kind that has a price."""
    found = Counter()
    for kind, number in asked.items():
        found[PRICED[kind]] += number
    return found


@pytest.mark.parametrize("parallelism", [1, 2, 16])
def test_an_epoch_asks_for_little(store, parallelism):
    """One segment, whatever the number of buckets, and the commit; FLUSH looks at what another writer may have done.
    docs/decisions/37-object-stores.md says what that costs.
    """
    with connect(parallelism=parallelism) as connection:
        set_up(connection)
        for number in range(3):
            change(connection, number)
            connection.flush()
        log = connection._session.database.log
        before = sent(store, log.last_epoch())
        change(connection, 3)
        begin = len(store.requests)
        connection.flush()
        asked = Counter(kind for kind, _ in store.requests[begin:])
        assert asked == {"put": 1, "create": 1, "stat": 1}
        assert priced(asked)["PUT"] <= 3
        # One a second, as docs/decisions/37-object-stores.md says: without the look of FLUSH, and with it.
        assert round(monthly_dollars(priced(asked - Counter(stat=1)))) == 26
        assert round(monthly_dollars(priced(asked))) == 27
        begin = len(store.requests)
        connection.execute("SELECT count(*) FROM v")
        assert store.requests[begin:] == []
        # Its own commit counts for the next epoch, as the one before and the transactions since count for this one.
        assert connection.status()["requests"] == sent(store, log.last_epoch()) - before


def test_objects_on_the_local_disk_are_told_from_those_that_are_fetched(store):
    def looked_up(number, *, wiped):
        """What tasks find that have nothing mapped."""
        with connect(parallelism=2) as connection:
            change(connection, number)
            _segments_of.cache_clear()
            if wiped:
                forget_copies()
            connection.flush()
            status = connection.status()
            return status["cache_hits"], status["cache_misses"]

    with connect(parallelism=2) as connection:
        set_up(connection)
        change(connection, 0)
        connection.flush()
    found, fetched = looked_up(1, wiped=False)
    assert found > 0
    assert fetched == 0, "what was written is there"
    _, fetched = looked_up(2, wiped=True)
    assert fetched > 0


def test_a_reader_at_rest_looks_once(store):
    """A SELECT of a process that only reads looks for a newer commit once, and what waits for one rarely."""
    with connect(parallelism=1) as writer:
        set_up(writer)
        change(writer, 1)
        writer.flush()
        with connect(read_only=True) as reader:
            assert reader.execute("SELECT count(*) FROM v").fetchall() == [(1,)]
            begin = len(store.requests)
            assert reader.execute("SELECT count(*) FROM v").fetchall() == [(1,)]
            assert Counter(kind for kind, _ in store.requests[begin:]) == {"stat": 1, "list": 1}
            change(writer, 2)
            writer.flush()
            begin = len(store.requests)
            assert reader.execute("SELECT count(*) FROM v").fetchall() == [(2,)]
            asked = Counter(kind for kind, _ in store.requests[begin:])
            assert asked["stat"] == 1
            assert asked["list"] <= 5
            assert asked["get"] <= 3
            log = reader._session.database.log
            begin = len(store.requests)
            assert not log.wait_past(log.head(), 0.35)
            # After 0, 0.1, 0.3 and 0.35 s, or less often.
            assert Counter(kind for kind, _ in store.requests[begin:])["stat"] <= 5


def opened(store):
    """The requests by which the database is opened, without the id of what they ask for."""
    begin = len(store.requests)
    connect().close()
    return Counter(kind for kind, _ in store.requests[begin:])


@pytest.mark.slow
def test_opening_costs_the_same_for_any_number_of_commits(store):
    """Those before the newest checkpoint are left to the first clean-up, which takes away what a crash left.

    A store lists 1,000 names in a request, so names are counted, too: of commits that are kept, and segments, none.
    """
    asked, listed = [], []
    for _ in range(2):
        with connect(parallelism=1) as connection:
            if not asked:
                set_up(connection)
                connection.execute("ALTER SYSTEM SET retention = '1 day'")
            ((rows,),) = connection.execute("SELECT count(*) FROM a").fetchall()
            for number in range(rows, rows + 20):
                change(connection, number)
            connection.flush()
            connection._session.database._compactor.run()
        store.listed = 0
        asked.append(opened(store))
        listed.append(store.listed)
    assert sum("/commits/" in name for name in store.objects) > 80
    assert asked[0] == asked[1]
    assert listed[1] <= listed[0] + 3, "a checkpoint, two fences"
    left = "db/segments/t9999-1-00000000000000000000000000000000.segment"
    store.objects[left] = b"left by a writer that died"
    with connect() as connection:
        assert left in store.objects
        change_and_clean_up(connection, [40])
        assert left not in store.objects
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(41,)]


@pytest.mark.slow
def test_a_clean_up_does_not_list_what_is_kept(store, monkeypatch):
    """It looks at all segments now and then: what nothing but a look at all of them shows goes, too."""
    monkeypatch.setattr(retention, "_SEGMENTS", 10)
    with connect(parallelism=1) as connection:
        set_up(connection)
        connection.execute("ALTER SYSTEM SET retention = '1 day'")
        change_and_clean_up(connection, range(40))
        begin = len(store.requests)
        change_and_clean_up(connection, [40])
        assert not {("list", "db/commits"), ("list", "db/segments")} & {*store.requests[begin:]}
        left = "db/segments/0000000001-1-00000000000000000000000000000000.segment"
        store.objects[left] = b"left by a task that ran twice"
        change_and_clean_up(connection, range(41, 50))
        assert left not in store.objects
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(50,)]


@pytest.mark.slow
def test_the_first_clean_up_reads_checkpoints_and_not_each_commit(store, monkeypatch):
    """Which files the commits name that are kept is in the checkpoints after them. Nothing is deleted that is still
    needed, and nothing is left when the history goes.
    """
    monkeypatch.setattr(checkpoints, "_AT_ONCE", 2)
    with connect(parallelism=1) as connection:
        set_up(connection)
        connection.execute("ALTER SYSTEM SET retention = '1 day'")
        for begin in range(0, 50, 10):
            for number in range(begin, begin + 10):
                change(connection, number)
                connection.flush()
            connection._session.database._compactor.run()
        kept = {name for name in store.objects if "/segments/t" in name}
    assert len(kept) == 100
    left = "db/segments/t9999-1-00000000000000000000000000000000.segment"
    store.objects[left] = b"left by a writer that died"
    with connect(parallelism=1) as connection:
        database = connection._session.database
        database._compactor.clean_up_first()
        begin = len(store.requests)
        database._compactor.run()
        asked = Counter(f"{kind} {name.split('/')[1]}" for kind, name in store.requests[begin:])
        assert database.log.head() > 150
        assert asked["get commits"] < 10
        assert asked["get snapshots"] <= 6
        assert asked["list commits"] == asked["list segments"] == 1
        assert kept < set(store.objects)
        assert left not in store.objects
        monkeypatch.setenv("WATERSMEET_READING_SECONDS", "0")
        connection.execute("ALTER SYSTEM SET retention = 0")
        change_and_clean_up(connection, [50, 51])
        log, content_files = database.log, database._compactor.last.files
        needed = content_files | retention.state_files(log, log.read(log.head()), database.segments)
        commits = [log.read(int(name[-17:-5])) for name in store.objects if "/commits/" in name]
        assert len(commits) < 20
        past = checkpoints.all_checkpoints(database.layout, checkpoints.newest_checkpoint(database.layout, log))
        needed = needed.union(*(kept.files for kept in past), *(commit.changed_files for commit in commits))
        assert {name.rpartition("/")[2] for name in store.objects if "/segments/" in name} == needed
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(52,)]


def opening_requests(store, tmp_path, number):
    """The requests of the thread that opens a database of so many views, sources and sinks."""
    places = [tmp_path / f"{what}{i}" for what in ("in",) for i in range(number)]
    for place in places:
        place.mkdir()
    with connect(parallelism=1) as connection:
        set_up(connection)
        for i in range(number):
            options = f"connector = 'file', path = '{tmp_path}/in{i}', format = 'json', settle_ms = 0"
            connection.execute(f"CREATE SOURCE s{i} (k int) WITH ({options})")
            connection.execute(f"CREATE MATERIALIZED VIEW w{i} AS SELECT k FROM s{i}")
            options = "connector = 'blackhole'"
            connection.execute(f"CREATE SINK n{i} FROM w{i} WITH ({options})")
        connection.flush()
    forget_copies()
    here, asked = threading.get_ident(), []

    def note(kind, name):
        if threading.get_ident() == here:
            asked.append((kind, name))

    store.before = note
    connection = connect()
    found = asked[:]
    asked.clear()
    connection.status()
    assert not [name for _, name in asked if "/commits/" in name], "the sizes of relations read all commits"
    store.before = lambda kind, name: None
    connection.close()
    return found


def test_opening_sends_few_requests_in_series(store, tmp_path):
    """Independent requests are sent by other threads, at the same time; the clean-up comes later."""
    asked = opening_requests(store, tmp_path, 1)
    assert len(asked) <= 14, asked
    assert not [name for _, name in asked if name.split("/")[1] in ("catalog", "forks", "segments") and "." not in name]


def test_opening_sends_as_many_in_series_for_more_relations(store, tmp_path, monkeypatch):
    for name in ("few", "many"):
        (tmp_path / name).mkdir()
    few = opening_requests(store, tmp_path / "few", 1)
    other = use(monkeypatch, MemoryStore(), tmp_path)
    many = opening_requests(other, tmp_path / "many", 6)
    # each source loads what it remembers
    assert len(many) - 6 <= len(few) - 1


def test_the_leftovers_of_a_killed_writer_are_deleted_after_the_first_commit(store):
    with connect(parallelism=1) as connection:
        set_up(connection)
        change(connection, 0)
        connection.flush()
    left = [
        "db/catalog/000000009999-1.json",  # of a statement that did not commit
        "db/forks/unfinished.json",  # of a CREATE FORK
        "db/secrets/%01left.json",  # of a CREATE with a password
    ]
    with connect() as connection:
        connection.execute("CREATE FORK unfinished")
        unfinished = store.objects["db/forks/unfinished.json"]
    with connect() as connection:
        connection.execute("DROP FORK unfinished")
    store.objects["db/forks/unfinished.json"] = unfinished
    store.objects[left[0]] = store.objects[left[2]] = b"left"
    killed = connect()  # a process that ends before it cleans up leaves that to the next one
    change(killed, 1)
    killed.flush()
    assert {*left} <= {*store.objects}
    with connect() as connection:
        change(connection, 2)
        connection.flush()
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(3,)]
        assert {*left} <= {*store.objects}
        connection._session.database._compactor.run()
        assert {*left} & {*store.objects} == set()
        store.objects[left[0]] = b"of a writer that was overtaken"
    with connect() as connection:
        change(connection, 3)
        connection.flush()
        assert left[0] in store.objects
    assert left[0] not in store.objects, "closed without a compaction"
    killed.close()


def test_a_slice_without_dead_letters_is_no_request(store, tmp_path):
    (tmp_path / "in").mkdir()
    source = f"connector = 'file', path = '{tmp_path}/in', format = 'json', settle_ms = 0"
    with connect(parallelism=1) as connection:
        connection.execute(f"CREATE SOURCE s (k int) WITH ({source})")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT k FROM s")
        for number in range(20):
            (tmp_path / "in" / f"{number}.json").write_text(f'{{"k": {number}}}\n')
        connection.flush()
        assert connection.execute("SELECT count(*) FROM w").fetchall() == [(20,)]
    assert not [name for kind, name in store.requests if kind == "delete" and "/dead/" in name]


def test_a_directory_is_asked_for_nothing(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        set_up(connection)
        change(connection, 1)
        connection.flush()
        assert connection.status()["requests"] == 0


def test_a_reader_reads_commits_at_once(store):
    with connect(parallelism=1) as connection:
        set_up(connection)
        for number in range(40):
            change(connection, number)
        connection.flush()
    store.requests.clear()
    with connect(read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(40,)]
    asked = Counter(f"{kind} {name.split('/')[1]}" for kind, name in store.requests)
    assert asked["get commits"] < 100
    assert asked["list commits"] == 1
    assert asked["list low-water"] + asked["stat commits"] < 20


def test_a_reader_that_is_overtaken_begins_anew(store, monkeypatch):
    monkeypatch.setenv("WATERSMEET_READING_SECONDS", "0")
    with connect(parallelism=1) as writer:
        set_up(writer)
        writer.execute("ALTER SYSTEM SET retention = 0")
        for number in range(5):
            change(writer, number)
            writer.flush()
        with connect(read_only=True) as reader:
            left, read_files = [1], storage.read_files

            def overtaken(paths):
                if left and "/commits/" in str(paths[0]):
                    left.clear()
                    move_reader()
                    elsewhere(lambda: change_and_clean_up(writer, [5]))
                return read_files(paths)

            monkeypatch.setattr(storage, "read_files", overtaken)
            assert reader.execute("SELECT count(*) FROM v").fetchall() == [(6,)]
            assert not left


def test_a_reader_that_is_always_overtaken_is_told(store, monkeypatch):
    with connect(parallelism=1) as writer:
        set_up(writer)

        def overtaken(*_):
            raise error("DATABASE_DAMAGED", "a segment is missing")

        with connect(read_only=True) as reader:
            monkeypatch.setattr(Content, "_refresh", overtaken)
            with pytest.raises(Error) as damaged:
                reader.execute("SELECT count(*) FROM v")
            assert damaged.value.condition == "DATABASE_DAMAGED"
            monkeypatch.setattr(content, "low_water_number", lambda layout: 1000)
            with pytest.raises(Error) as late:
                reader.execute("SELECT count(*) FROM v")
            assert late.value.condition == "SNAPSHOT_TOO_OLD"


def move_reader():
    """The reader is in a process on another machine: it has no copies, and nobody knows of it."""
    readers._HERE.clear()
    forget_copies()


def test_what_a_reader_may_need_is_kept_for_a_time(store):
    with connect(parallelism=1) as writer:
        set_up(writer)
        with connect(read_only=True) as reader:
            assert reader.execute("SELECT count(*) FROM v").fetchall() == [(0,)]
            change_and_clean_up(writer, range(5))
            commits = [name for name in store.objects if "/commits/" in name]
            assert len(commits) == writer._session.database.log.head()
