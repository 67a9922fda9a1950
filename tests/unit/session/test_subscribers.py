"""`Connection.subscribe`: content, then changes, commit by commit; tokens; what ends a subscriber."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

import watersmeet
from watersmeet.subscribing import subscriber, updates


def connect(path=None, **options):
    return watersmeet.connect(path, runtime="inprocess", parallelism=2, **options)


@pytest.fixture
def connection():
    with connect() as made:
        made.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
        made.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
        yield made


def read(connection):
    """Reads the newest content, so that the connection itself needs no earlier commit."""
    connection.execute("SELECT * FROM t")


def put(connection, *rows):
    connection.execute("INSERT INTO t VALUES " + ", ".join(f"({k}, {v})" for k, v in rows))
    connection.flush()
    return connection.opened.log.head()


def changes(update):
    return [(b.relation, tuple(r.values()), d) for b in update.batches for r, d in zip(b.rows.to_pylist(), b.diffs)]


def refused(action, *arguments, **options):
    with pytest.raises(watersmeet.Error) as caught:
        action(*arguments, **options)
    return caught.value


def until(condition):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_content_comes_first_then_each_commit(connection):
    head = put(connection, (1, 7), (2, 7))
    with connection.subscribe("m") as updates_of:
        first = updates_of.next(60)
        assert (first.commit, first.is_snapshot, first.is_complete) == (head, True, True)
        assert changes(first) == [("m", (7, 2), 1)]
        head = put(connection, (1, 8))
        second = updates_of.next(60)
        assert (second.commit, second.is_snapshot) == (head, False)
        assert sorted(changes(second)) == [("m", (7, 1), 1), ("m", (7, 2), -1), ("m", (8, 1), 1)]
        assert updates_of.token == head
        assert updates_of.take() is None


def test_rows_go_before_others_come(connection):
    put(connection, *[(k, 1) for k in range(20)])
    with connection.subscribe("t") as updates_of:
        updates_of.next(60)
        put(connection, *[(k, 2) for k in range(20)])
        (batch,) = updates_of.next(60).batches
        assert batch.diffs.tolist() == [-1] * 20 + [1] * 20


def test_an_empty_view_has_empty_content(connection):
    with connection.subscribe("m") as updates_of:
        first = updates_of.next(60)
        assert (first.batches, first.is_snapshot, first.is_complete) == ((), True, True)
        assert updates_of.token == first.commit


def test_views_and_tables_of_a_commit_are_one_moment(connection):
    """A row of a table comes with the epoch that first reflects it, as in a SELECT."""
    with connection.subscribe("t", "m") as updates_of:
        updates_of.next(60)
        connection.execute("INSERT INTO t VALUES (1, 7)")
        connection.execute("INSERT INTO t VALUES (2, 7)")
        assert updates_of.take() is None
        connection.flush()
        update = updates_of.next(60)
        assert changes(update)[-1] == ("m", (7, 2), 1)
        assert sorted(changes(update)[:2]) == [("t", (1, 7), 1), ("t", (2, 7), 1)]


def test_a_table_without_views_changes_with_each_transaction():
    with connect() as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
        with connection.subscribe("t") as updates_of:
            updates_of.next(60)
            numbers = [put(connection, (1, 1)), put(connection, (1, 2))]
            found = [updates_of.next(60), updates_of.next(60)]
            assert [u.commit for u in found] == numbers
            connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v FROM t")
            put(connection, (1, 3))
            assert changes(updates_of.next(60)) == [("t", (1, 2), -1), ("t", (1, 3), 1)]
            connection.execute("DROP MATERIALIZED VIEW m")
            put(connection, (1, 4))
            assert changes(updates_of.next(60)) == [("t", (1, 3), -1), ("t", (1, 4), 1)]
            token = updates_of.token
        put(connection, (1, 5))
        with connection.subscribe("t", after=token) as updates_of:
            assert changes(updates_of.next(60)) == [("t", (1, 4), -1), ("t", (1, 5), 1)]


def test_a_token_goes_on_in_another_process_that_only_reads(tmp_path):
    with connect(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
        connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
        put(connection, (1, 1))
        with connection.subscribe("m") as updates_of:
            updates_of.next(60)
            token = updates_of.token
        put(connection, (2, 1))
        with connect(tmp_path / "db", read_only=True) as reader, reader.subscribe("m", after=token) as updates_of:
            assert sorted(changes(updates_of.next(60))) == [("m", (1, 1), -1), ("m", (1, 2), 1)]
            put(connection, (3, 1))
            assert sorted(changes(updates_of.next(60))) == [("m", (1, 2), -1), ("m", (1, 3), 1)]


def test_it_ends_at_up_to(connection):
    begin = put(connection, (1, 1))
    numbers = [put(connection, (k, 1)) for k in range(2, 6)]
    with connection.subscribe("m", after=begin, up_to=numbers[2]) as updates_of:
        assert [u.commit for u in updates_of] == numbers[:3]
        assert updates_of.ended
        assert updates_of.token == numbers[2]
    with connection.subscribe("m", up_to=numbers[3] + 2) as updates_of:  # a transaction and its epoch
        found = []
        reading = threading.Thread(target=lambda: found.extend(updates_of))
        reading.start()
        put(connection, (9, 1))
        put(connection, (10, 1))
        reading.join(60)
        assert [u.commit for u in found] == [numbers[3], numbers[3] + 2]
    assert refused(connection.subscribe, "m", up_to=begin).condition == "INVALID_PARAMETER"


def test_progress_tells_of_commits_without_changes(connection):
    connection.execute("CREATE TABLE other (k int)")
    connection.execute("CREATE MATERIALIZED VIEW n AS SELECT k FROM other")
    begin = connection.opened.log.head()
    with connection.subscribe("m", snapshot=False, progress=True) as updates_of:
        first = updates_of.next(60)
        assert (first.commit, first.batches) == (begin, ())
        connection.execute("INSERT INTO other VALUES (1)")
        connection.flush()
        head = connection.opened.log.head()
        numbers = [first.commit]
        while numbers[-1] < head:
            update = updates_of.next(60)
            assert update.batches == ()
            assert update.is_complete
            numbers.append(update.commit)
        assert numbers == sorted(set(numbers))
        head = put(connection, (1, 1))
        while updates_of.token < head:
            update = updates_of.next(60)
        assert (update.commit, len(update.batches)) == (head, 1)


def test_the_token_moves_on_without_changes_too(connection):
    with connection.subscribe("m") as updates_of:
        assert updates_of.token is None
        updates_of.next(60)
        connection.execute("CREATE TABLE other (k int)")
        head = connection.opened.log.head()
        until(lambda: updates_of.token == head)


def test_large_content_comes_in_parts(connection, monkeypatch):
    monkeypatch.setattr(updates, "BATCH_ROWS", 8)
    monkeypatch.setattr(subscriber, "BATCH_ROWS", 8)
    put(connection, *[(k, k) for k in range(20)])
    with connection.subscribe("t", "m") as updates_of:
        parts = []
        while not parts or not parts[-1].is_complete:
            assert updates_of.token is None
            parts.append(updates_of.next(60))
        assert all(p.is_snapshot and len(p.batches) == 1 for p in parts)
        assert {p.commit for p in parts} == {updates_of.token}
        assert [p.batches[0].relation for p in parts] == ["t"] * 3 + ["m"] * 3
        put(connection, *[(k, -1) for k in range(20)])
        batches = updates_of.next(60).batches
        assert [b.relation for b in batches] == ["t"] * 5 + ["m"] * 3
        assert max(b.rows.num_rows for b in batches) == 8


def test_changes_that_come_while_the_content_is_read_follow_it(connection):
    put(connection, (1, 1))
    with connection.subscribe("t") as updates_of:
        put(connection, (2, 2))
        assert changes(updates_of.next(60)) == [("t", (1, 1), 1), ("t", (2, 2), 1)]
        put(connection, (3, 3))
        put(connection, (4, 4))
        assert [changes(updates_of.next(60)) for _ in range(2)] == [[("t", (3, 3), 1)], [("t", (4, 4), 1)]]


def test_a_subscriber_far_behind_catches_up(connection, monkeypatch):
    monkeypatch.setattr(subscriber, "_NEAR_COMMITS", 3)
    token = connection.opened.log.head()
    numbers = [put(connection, (k, k)) for k in range(12)]
    with connection.subscribe("m", after=token) as updates_of:
        found = [updates_of.next(60) for _ in range(8)]
        numbers += [put(connection, (k, k)) for k in range(12, 20)]
        found += [updates_of.next(60) for _ in range(12)]
        assert [u.commit for u in found] == numbers


def test_an_event_loop_waits_for_many(connection):
    async def follow(updates_of, wanted):
        async with updates_of:
            async for update in updates_of:
                if update.commit >= wanted:
                    return update
        return None

    async def run():
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        wanted = connection.opened.log.head() + 2
        tasks = [asyncio.create_task(follow(connection.subscribe("m"), wanted)) for _ in range(20)]
        writer = threading.Thread(target=lambda: (put(connection, (1, 1)), loop.call_soon_threadsafe(ready.set)))
        writer.start()
        found = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        await ready.wait()
        writer.join()
        return found

    found = asyncio.run(run())
    assert len({u.commit for u in found}) == 1
    assert {tuple(changes(u)) for u in found} == {(("m", (1, 1), 1),)}


def test_epochs_run_while_an_event_loop_waits(connection):
    async def run():
        async with connection.subscribe("m") as updates_of:
            await anext(updates_of)
            connection.execute("INSERT INTO t VALUES (1, 1)")  # without FLUSH
            return await asyncio.wait_for(anext(updates_of), 60)

    assert changes(asyncio.run(run())) == [("m", (1, 1), 1)]


def test_subscribers_share_batches(connection):
    with connection.subscribe("m") as one, connection.subscribe("t", "m") as other:
        one.next(60), other.next(60)
        put(connection, (1, 1))
        (batch,), (_, shared) = one.next(60).batches, other.next(60).batches
        assert batch is shared
        made = []
        assert batch.made("text", lambda b: made.append(b) or "text") == "text"
        assert shared.made("text", lambda b: made.append(b) or "other") == "text"
        assert made == [batch]


def test_rows_of_what_only_grows_keep_their_order():
    with connect() as connection:
        connection.execute("CREATE TABLE s (i int) APPEND ONLY")
        with connection.subscribe("s") as updates_of:
            updates_of.next(60)
            connection.execute("INSERT INTO s VALUES (3), (1), (3), (2)")
            connection.flush()
            (batch,) = updates_of.next(60).batches
            assert batch.rows.column(0).to_pylist() == [3, 1, 3, 2]


def test_equal_rows_are_one_with_their_number():
    with connect() as connection:
        connection.execute("CREATE TABLE s (i int)")
        with connection.subscribe("s") as updates_of:
            updates_of.next(60)
            connection.execute("INSERT INTO s VALUES (3), (1), (3)")
            assert Counter(dict((r[0], d) for _, r, d in changes(updates_of.next(60)))) == {1: 1, 3: 2}


def test_columns_keep_the_names_that_they_had():
    with connect() as connection:
        connection.execute("CREATE TABLE s (i int, j int)")
        with connection.subscribe("s") as updates_of:
            updates_of.next(60)
            connection.execute("ALTER TABLE s RENAME COLUMN i TO number")
            connection.execute("ALTER TABLE s ADD COLUMN more int")
            connection.execute("INSERT INTO s VALUES (1, 2, 3)")
            assert updates_of.next(60).batches[0].rows.to_pylist() == [{"i": 1, "j": 2}]
        with connection.subscribe("s", after=updates_of.token - 1) as updates_of:
            assert updates_of.next(60).batches[0].rows.to_pylist() == [{"number": 1, "j": 2, "more": 3}]


def test_who_does_not_take_changes_is_cut_off_with_a_token(connection):
    with connection.subscribe("t", buffer_bytes=10_000) as slow, connection.subscribe("t") as other:
        slow.next(60), other.next(60)
        numbers = [put(connection, (k, k)) for k in range(20)]
        until(lambda: slow._problem is not None)
        problem = refused(slow.next, 60)
        assert problem.condition == "SLOW_SUBSCRIBER"
        token = slow.token
        assert token < numbers[0]
        assert problem.hint == f"Subscribe again after commit {token}."
        with connection.subscribe("t", after=token) as again:
            assert [again.next(60).commit for _ in numbers] == numbers
        assert [other.next(60).commit for _ in numbers] == numbers


def test_one_large_change_is_no_reason_to_cut_off(connection):
    with connection.subscribe("t", buffer_bytes=1000) as updates_of:
        updates_of.next(60)
        head = put(connection, *[(k, k) for k in range(500)])
        until(lambda: updates_of._queue)
        assert updates_of.next(60).commit == head


def test_changes_that_are_no_longer_kept(connection):
    connection.execute("ALTER SYSTEM SET retention = 0")
    token = put(connection, (1, 1))
    head = [put(connection, (k, 1)) for k in range(2, 5)][-1]
    read(connection)
    connection.opened._compactor.run()
    problem = refused(connection.subscribe, "m", after=token)
    assert problem.condition == "HISTORY_GONE"
    assert problem.message == f"the history since commit {token} is no longer kept"
    oldest = int(problem.detail.split(": ")[1].split(",")[0])
    assert head <= oldest <= connection.opened.log.head()
    with connection.subscribe("m", after=oldest) as updates_of:
        number = put(connection, (7, 1))
        assert updates_of.next(60).commit == number


def test_a_subscriber_that_reads_late_keeps_what_it_needs(connection):
    connection.execute("ALTER SYSTEM SET retention = 0")
    token = put(connection, (1, 1))
    with connection.subscribe("m", after=token) as updates_of:
        numbers = [put(connection, (k, 1)) for k in range(2, 5)]
        connection.opened._compactor.run()
        assert [updates_of.next(60).commit for _ in numbers] == numbers
        connection.opened._compactor.run()
        numbers = [put(connection, (k, 1)) for k in range(5, 8)]
        connection.opened._compactor.run()
        assert [updates_of.next(60).commit for _ in numbers] == numbers
    read(connection)
    connection.opened._compactor.run()
    assert refused(connection.subscribe, "m", after=token).condition == "HISTORY_GONE"


def test_commits_that_are_not_there_yet(connection):
    head = connection.opened.log.head()
    problem = refused(connection.subscribe, "m", after=head + 1)
    assert (problem.condition, problem.hint) == ("INVALID_PARAMETER", f"The newest commit is {head}.")
    assert refused(connection.subscribe, "m", after=-1).condition == "INVALID_PARAMETER"


def test_a_relation_that_was_not_there_at_the_token(connection):
    token = put(connection, (1, 1))
    connection.execute("CREATE MATERIALIZED VIEW later AS SELECT k FROM t")
    problem = refused(connection.subscribe, "later", after=token)
    assert problem.condition == "HISTORY_GONE"
    assert problem.message == f'materialized view "later" was not there yet at commit {token}'
    token = connection.opened.log.head()
    connection.execute("DROP MATERIALIZED VIEW m")
    connection.execute("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM t GROUP BY v")
    assert refused(connection.subscribe, "m", after=token).condition == "HISTORY_GONE"


def test_a_table_of_a_transaction_is_there_from_its_commit_on(connection):
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE made (k int)")
    problem = refused(connection.subscribe, "made")
    assert problem.condition == "FEATURE_NOT_SUPPORTED"
    connection.execute("INSERT INTO made VALUES (1)")
    token = connection.opened.log.head()
    connection.execute("COMMIT")
    connection.flush()
    assert refused(connection.subscribe, "made", after=token).condition == "HISTORY_GONE"
    with connection.subscribe("made") as updates_of:
        assert changes(updates_of.next(60)) == [("made", (1,), 1)]


def test_a_dropped_relation_ends_its_subscribers(connection):
    with connection.subscribe("m") as updates_of:
        updates_of.next(60)
        head = put(connection, (1, 1))
        until(lambda: updates_of._queue)
        connection.execute("DROP MATERIALIZED VIEW m")
        until(lambda: updates_of._problem is not None)
        assert updates_of.next(60).commit == head
        problem = refused(updates_of.next, 60)
        assert (problem.condition, problem.message) == ("UNDEFINED_RELATION", 'materialized view "m" was dropped')
    with connection.subscribe("t") as updates_of:
        connection.execute("DROP TABLE t")
        assert refused(updates_of.next, 60).condition == "UNDEFINED_RELATION"


def test_a_stopped_view_ends_its_subscribers(connection):
    connection.execute("SET max_join_amplification_rows = 10")
    connection.execute("CREATE TABLE u (i int, v int)")
    connection.execute("CREATE MATERIALIZED VIEW j AS SELECT t.k, u.i FROM t JOIN u ON t.v = u.v")
    connection.execute("INSERT INTO u VALUES (1, 1), (2, 1)")
    with connection.subscribe("j") as updates_of:
        updates_of.next(60)
        put(connection, *[(k, 1) for k in range(9)])
        assert refused(updates_of.next, 60).condition == "AMPLIFICATION_LIMIT"
    assert refused(connection.subscribe, "j").condition == "AMPLIFICATION_LIMIT"


def test_closing_the_database_ends_subscribers():
    connection = connect()
    connection.execute("CREATE TABLE t (k int)")
    updates_of = connection.subscribe("t")
    updates_of.next(60)
    found = []
    waiting = threading.Thread(target=lambda: found.append(refused(updates_of.next, 60)))
    waiting.start()
    connection.close()
    waiting.join(60)
    assert found[0].condition == "CONNECTION_CLOSED"
    assert refused(connection.subscribe, "t").condition == "CONNECTION_CLOSED"


def test_a_closed_subscriber_gives_nothing(connection):
    updates_of = connection.subscribe("m")
    updates_of.next(60)
    put(connection, (1, 1))
    updates_of.close()
    updates_of.close()
    assert updates_of.take() is None
    assert list(updates_of) == []
    assert updates_of.ended


def test_closing_ends_a_wait(connection):
    updates_of = connection.subscribe("m")
    updates_of.next(60)
    waiting = threading.Thread(target=updates_of.next)
    waiting.start()
    updates_of.close()
    waiting.join(60)
    assert not waiting.is_alive()


def test_the_thread_ends_with_the_last_subscriber(connection):
    def threads():
        return [t for t in threading.enumerate() if t.name == "watersmeet-tailer"]

    one, other = connection.subscribe("m"), connection.subscribe("m")
    one.next(60), other.next(60)
    one.take(), other.take()
    assert len(threads()) == 1
    one.close()
    del other
    gc.collect()
    until(lambda: not threads())
    with connection.subscribe("m") as again:
        again.next(60)
        head = put(connection, (1, 1))
        assert again.next(60).commit == head


@pytest.mark.parametrize(
    ("name", "condition"),
    [("nothing", "UNDEFINED_RELATION"), ("plain", "FEATURE_NOT_SUPPORTED"), ("src", "FEATURE_NOT_SUPPORTED")],
)
def test_what_can_not_be_subscribed_to(connection, name, condition):
    connection.execute("CREATE VIEW plain AS SELECT k FROM t")
    connection.execute("CREATE SOURCE src (k int) WITH (connector = 'datagen', datagen.rows.per.second = '1')")
    assert refused(connection.subscribe, name).condition == condition


def test_names_are_given_once(connection):
    assert refused(connection.subscribe).condition == "INVALID_PARAMETER"
    assert refused(connection.subscribe, "m", "public.m").condition == "INVALID_PARAMETER"
    connection.execute("CREATE SCHEMA s")
    connection.execute("CREATE TABLE s.t (k int)")
    with connection.subscribe("t", "s.t") as updates_of:
        connection.execute("INSERT INTO s.t VALUES (1)")
        connection.flush()
        assert changes(updates_of.next(60)) == [("s.t", (1,), 1)]


def test_batches_have_the_types_of_the_relation(connection):
    connection.execute(
        "CREATE TABLE typed (n numeric(10,2), x double precision, s varchar, b bytea, d date, z timestamptz, "
        "i interval, j jsonb, a int[], r struct<p int, q varchar>)"
    )
    connection.execute("INSERT INTO typed VALUES (NULL, 'NaN', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)")
    with connection.subscribe("typed") as updates_of:
        connection.flush()
        content = updates_of.next(60).batches[0].rows.schema
        connection.execute(
            "INSERT INTO typed VALUES (1.5, -0.0, 'x', '\\xff', '2026-01-01', NULL, NULL, '1', NULL, NULL)"
        )
        connection.flush()
        change = updates_of.next(60).batches[0].rows.schema
        assert content.equals(change)
        assert isinstance(content, pa.Schema)
