"""Compaction: the content stays, old files go, and nobody who reads meanwhile notices."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from support import CATALOG, Database, counted, read, rows_table

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.store import compaction, retention, segments
from watersmeet.store.checkpoints import Level, load_checkpoint, newest_checkpoint
from watersmeet.store.commits import Commit, CommitLog, Frontier
from watersmeet.store.compaction import RelationSizes
from watersmeet.store.content import Content
from watersmeet.store.layout import Layout
from watersmeet.store.readers import Reader, commits_there, low_water_number, read_low_water
from watersmeet.store.retention import Cleaner
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter, epoch_prefix, file_snapshot
from watersmeet.system.blobs import BlobRef


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "x")
    yield found
    found.close()


def foreign(database):
    layout = Layout(database.layout.root, create=False)
    found = Content(layout, CommitLog(layout), SegmentFiles(layout.segments))
    database.open.append(found)
    return found


def fill(database, count, start=0):
    """Transactions and the epochs that reflect them: m4 stays equal to t1."""
    for i in range(start, start + count):
        commit = database.transaction(t1=[((i, "a", 1.0), 1)])
        database.epoch(transaction=commit.number, m4=[((i, "a", 1.0), 1)])


def commits(database):
    return commits_there(database.layout, read_low_water(database.layout))


def test_old_commits_and_segments_go_and_the_content_stays(database):
    """Features: snapshots and deletion of old files."""
    fill(database, 30)
    before = read(database.content(), CATALOG, "t1", "m4")
    assert database.compactor.due()
    database.compactor.run()
    assert not database.compactor.due()
    # The newest two epochs stay, and the newest commit, which names the checkpoint.
    assert commits(database) == [59, 61, 62]
    assert sorted(p.name[0] for p in database.layout.segments.iterdir()) == ["0", "0", "s"]
    assert read(foreign(database), CATALOG, "t1", "m4") == before
    fill(database, 3, start=30)
    assert read(foreign(database), CATALOG, "t1", "m4")["m4"].total() == 33


def test_a_flush_compacts_little_content_itself_and_does_not_wait_for_much(database, monkeypatch):
    fill(database, 30)
    database.compactor.run_if_due()
    assert commits(database) == [59, 61, 62]
    monkeypatch.setattr(compaction, "_INLINE_BYTES", 0)
    begun, goes_on, checkpoint = threading.Event(), threading.Event(), database.compactor._checkpoint

    def held(*arguments):
        begun.set()
        assert goes_on.wait(60)
        return checkpoint(*arguments)

    monkeypatch.setattr(database.compactor, "_checkpoint", held)
    fill(database, 30, start=30)
    database.compactor.run_if_due()
    assert begun.wait(60)
    fill(database, 30, start=60)
    database.compactor.run_if_due()  # the first run goes on
    assert len(commits(database)) > 100
    goes_on.set()
    database.compactor._thread.join()
    assert len(commits(database)) < 70
    assert read(foreign(database), CATALOG, "t1", "m4")["m4"].total() == 90


def test_commits_that_a_run_deleted_are_not_asked_for(tmp_path):
    """Commits that came between `due` and `run` are in the checkpoint: they are gone, also from the log's memory."""
    database = Database(tmp_path / "y", cache_bytes=1)
    fill(database, 10)
    assert database.compactor.due()
    fill(database, 10, start=10)
    database.compactor.run()
    assert not database.compactor.due()
    fill(database, 10, start=20)
    assert database.compactor.due()
    database.close()


@pytest.mark.slow
def test_maps_of_segments_do_not_grow_with_the_number_of_commits(database):
    """Neither the writer, which reads all changes for its checkpoints, nor a reader keeps maps of files that went."""
    reader, mapped = foreign(database), []
    for _ in range(3):
        for _ in range(10):
            fill(database, 40)
            read(reader, CATALOG, "m4")
            database.compactor.run()
        mapped.append((database.segments.mapped_bytes, reader._segments.mapped_bytes))
    assert mapped[0][1] == mapped[1][1] == mapped[2][1]
    assert max(w for w, _ in mapped) < 1.1 * min(w for w, _ in mapped) < 1 << 23  # the content grows


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_thread_yields_but_does_not_starve(database):
    """With the lowest priority of all it got no processor time on a busy machine, and files piled up."""
    database.compactor.start()
    (thread,) = [t for t in threading.enumerate() if t.name == "watersmeet-compaction"]
    process = os.getpriority(os.PRIO_PROCESS, os.getpid())
    wanted = min(process + 10, 19)
    while (nice := os.getpriority(os.PRIO_PROCESS, thread.native_id)) == process < wanted:
        time.sleep(0.01)
    assert nice == wanted


def test_commits_that_no_epoch_reflects_yet_stay(database):
    fill(database, 5)
    pending = [database.transaction(t1=[((100 + i, "p", 0.0), 1)]).number for i in range(4)]
    database.compactor.run()
    assert commits(database)[-5:-1] == pending
    assert read(foreign(database), CATALOG, "t1")["t1"].total() == 5
    assert read(foreign(database), CATALOG, "t1", newest=True)["t1"].total() == 9
    database.epoch(transaction=pending[-1])
    assert read(foreign(database), CATALOG, "t1")["t1"].total() == 9


def test_epochs_without_transactions_do_not_hold_commits(database):
    """Views over files only: the frontier's transaction never moves, and old commits go all the same."""
    first = database.transaction(t1=[((1, "a", 1.0), 1)]).number
    for i in range(30):
        database.epoch(transaction=first, t3=[((i, "f", 0.0), 1)])
    assert database.compactor.due()
    database.compactor.run()
    assert commits(database) == [31, 32, 33]
    last = database.transaction(t1=[((2, "a", 1.0), 1)]).number
    database.epoch(transaction=first, t3=[((30, "f", 0.0), 1)])
    found = read(foreign(database), CATALOG, "t1", "t3")
    assert (found["t1"].total(), found["t3"].total()) == (1, 31)
    database.epoch(transaction=last)
    assert read(foreign(database), CATALOG, "t1")["t1"].total() == 2


def test_a_hold_keeps_what_its_reader_needs(database):
    fill(database, 5)
    reader = Reader(database.layout)
    assert reader.try_pin(4)
    fill(database, 20, start=5)
    database.compactor.run()
    assert commits(database)[0] == 5
    reader.try_pin(30)
    fill(database, 1, start=25)
    database.compactor.run()
    assert commits(database)[0] == 31
    reader.close()
    fill(database, 1, start=26)
    database.compactor.run()
    assert commits(database) == [54, 57, 58]


def test_an_idle_reader_is_waited_for_up_to_a_limit(database, monkeypatch):
    fill(database, 5)
    follower = foreign(database)
    read(follower, CATALOG, "t1", "m4")
    fill(database, 5, start=5)
    database.compactor.run()
    assert commits(database)[0] == 12
    monkeypatch.setattr(retention, "IDLE_COMMITS", 5)
    fill(database, 5, start=10)
    database.compactor.run()
    assert commits(database) == [30, 32, 33]
    # It was left behind: it starts again from the checkpoint and sees the same as everyone.
    assert read(follower, CATALOG, "t1", "m4")["t1"].total() == 15


@pytest.mark.parametrize(("idle_bytes", "waits"), [(1 << 20, True), (1000, False)])
def test_what_is_kept_for_idle_readers_is_bounded_by_bytes(tmp_path, idle_bytes, waits):
    """A few commits with much in them are more than many small ones."""
    database = Database(tmp_path / "y")
    fill(database, 5)
    follower = foreign(database)
    read(follower, CATALOG, "t1", "m4")
    fill(database, 5, start=5)
    parts = database.layout, database.log, database.segments, lambda: CATALOG
    compaction.Compactor(*parts, idle_bytes=idle_bytes).run()
    assert (commits(database)[0] == 12) == waits
    assert read(follower, CATALOG, "t1", "m4")["t1"].total() == 10
    database.close()


def test_a_read_in_progress_is_waited_for(database, monkeypatch):
    """A reader that stands still in the middle of a load while two compactions pass."""
    fill(database, 10)
    database.compactor.run()
    fill(database, 10, start=10)
    follower = foreign(database)
    original = Content._load

    def slow(self, relation, checkpoint):
        if relation.id == "t1":
            for start in (20, 30):
                fill(database, 10, start=start)
                database.compactor.run()
        original(self, relation, checkpoint)

    monkeypatch.setattr(Content, "_load", slow)
    found = read(follower, CATALOG, "t1", "m4")
    assert found["t1"] == found["m4"]
    assert found["t1"].total() == 40


@pytest.mark.slow
def test_readers_beside_a_busy_writer_see_one_moment(database):
    """Features: reads from elsewhere under concurrent updates; every read is one frontier's content."""
    stop, failures, reads = threading.Event(), [], []
    fill(database, 1, start=1000)  # before the first epoch tables are shown as they are, and views are empty
    database.compactor._commits = 8
    database.compactor.start()

    def follow(again):
        content = foreign(database)
        while not stop.is_set():
            try:
                found = read(content, CATALOG, "m4", "t1")
                if found["m4"] != found["t1"]:
                    failures.append(found)
                reads.append(found["t1"].total())
                if again:
                    content.drop("t1")
            except Exception as raised:
                failures.append(raised)
                return

    threads = [threading.Thread(target=follow, args=(again,)) for again in (False, True)]
    for thread in threads:
        thread.start()
    for value in range(150):
        commit = database.transaction(t1=[((value, "a", 1.0), 1), ((value - 5, "a", 1.0), -1 if value >= 5 else 1)])
        old = [((value, "a", 1.0), 1), ((value - 5, "a", 1.0), -1 if value >= 5 else 1)]
        database.epoch(transaction=commit.number, m4=old)
        if failures:
            break
        time.sleep(0.002)
    patience = time.monotonic() + 120
    while len(reads) < 2 and not failures and time.monotonic() < patience:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert reads
    # It yields to everybody else, so on a busy machine it may not have had its turn yet.
    while commits(database)[0] == 1 and time.monotonic() < patience:
        time.sleep(0.05)
    assert database.compactor.last_error is None
    assert commits(database)[0] > 1


def test_a_relation_made_during_a_compaction_keeps_its_first_commits(database, monkeypatch):
    fill(database, 12)
    made = replace(CATALOG.relations["t1"], id="t5", name="late")
    larger = CATALOG.with_relation(made)
    original = compaction.moment_at

    def late(log, catalog, head=None, **options):
        found = original(log, catalog, head, **options)
        if database.catalog is CATALOG and head is not None:
            database.catalog = larger
            database.transaction(t5=[((1, "late", 0.0), 1)])
            database.epoch(transaction=database.log.head())
        return found

    monkeypatch.setattr(compaction, "moment_at", late)
    database.compactor.run()
    database.compactor.run()
    assert read(foreign(database), larger, "t5")["t5"] == Counter({(1, "late", 0.0): 1})


def test_a_relation_that_was_dropped_meanwhile(database):
    fill(database, 12)
    database.catalog = CATALOG.without({"t1"})
    database.compactor.run()
    with pytest.raises(Error, match="was dropped") as raised:
        foreign(database).refresh(CATALOG, ["t1"])
    assert raised.value.condition == "UNDEFINED_RELATION"


def levels(*rows, insert_only=False):
    return tuple(Level((BlobRef(f"{i}.run", 0, n, n),), insert_only) for i, n in enumerate(rows))


def test_levels_merge_when_the_changes_have_grown():
    big = 100 * compaction.SMALL_ROWS
    assert compaction._split(levels(big), big // 10)[1] == ()
    assert len(compaction._split(levels(big, big // 10), big // 10)[1]) == 1
    assert len(compaction._split(levels(big, big // 3), big // 3)[1]) == 2
    assert len(compaction._split(levels(100, 10), 1)[1]) == 2


def test_a_large_snapshot_is_not_rewritten_for_small_changes(database, monkeypatch):
    monkeypatch.setattr(compaction, "SMALL_ROWS", 0)
    monkeypatch.setattr("watersmeet.store.changes.BLOB_ROWS", 100)
    expected = Counter()
    database.transaction(t1=[((i, "a", None), 1 + i % 2) for i in range(1000)])
    expected.update({(i, "a", None): 1 + i % 2 for i in range(1000)})
    first = database.compactor.run().relations["t1"].levels[0]
    assert len(first.blobs) == 10
    for turn in range(8):
        change = [((i, "a", None), -1) for i in range(turn * 10, turn * 10 + 10)] + [((turn, "b", 0.5), 2)]
        database.transaction(t1=change)
        for row, diff in change:
            expected[row] += diff
        checkpoint = database.compactor.run()
        assert checkpoint.relations["t1"].levels[0] == first
        assert checkpoint.relations["t1"].rows == expected.total()
        assert read(foreign(database), CATALOG, "t1")["t1"] == +expected
    assert len(checkpoint.relations["t1"].levels) <= 5
    database.transaction(t1=[((i, "z", None), 1) for i in range(2000)])
    assert len(database.compactor.run().relations["t1"].levels) == 1
    expected.update({(i, "z", None): 1 for i in range(2000)})
    assert read(foreign(database), CATALOG, "t1")["t1"] == +expected


@pytest.fixture
def blobs_of_50(monkeypatch):
    """Blobs of fifty rows are as large as they get, and in files of their own."""
    monkeypatch.setattr("watersmeet.store.changes.BLOB_ROWS", 50)
    monkeypatch.setattr(compaction, "_LARGE_ROWS", 50)
    monkeypatch.setattr(compaction, "_OWN_FILE_BYTES", 1200)
    monkeypatch.setattr(segments, "OWN_FILE_BYTES", 1200)


def test_what_lies_in_large_blobs_is_not_written_again(database, blobs_of_50):
    """The files that a transaction wrote become those of the snapshot, and stay as long as that names them."""
    commit = database.transaction(t2=[((i, "a", None), 1) for i in range(120)])
    written = commit.relations["t2"].blobs
    assert [b.file.rpartition(".")[2] for b in written] == ["run", "run", "segment"]
    first = database.compactor.run().relations["t2"].levels[0].blobs
    assert [b.rows for b in first] == [50, 50, 20]
    assert first[:2] == written[:2]
    assert file_snapshot(first[2].file) == commit.number
    database.transaction(t2=[((i, "b", None), 1) for i in range(90)])
    second = database.compactor.run().relations["t2"].levels[0].blobs
    assert second[:2] == written[:2]
    assert [b.rows for b in second] == [50, 50, 20, 50, 40]
    assert second[2] == first[2]  # between large ones there is nothing to join it with
    for _ in range(3):
        database.transaction(t1=[((0, "x", None), 1)])
        database.compactor.run()
    assert all((database.layout.segments / b.file).exists() for b in second)
    assert read(foreign(database), CATALOG, "t2")["t2"].total() == 210


def test_large_blobs_without_deleted_rows_are_not_written_again(database, blobs_of_50):
    rows = [((i, "a", None), 1) for i in range(150)]
    written = database.transaction(t1=rows).relations["t1"].blobs
    deleted = [((i, "a", None), -1) for i in (60, 61, 149)]
    database.transaction(t1=[*deleted, *(((i, "b", None), 1) for i in range(3))])
    level = database.compactor.run().relations["t1"].levels[0]
    assert level.blobs[0] == written[0]
    assert not {b.file for b in level.blobs} & {b.file for b in written[1:]}
    assert (level.insert_only, level.rows) == (True, 150)
    expected = Counter(dict([*rows, *(((i, "b", None), 1) for i in range(3))]))
    expected.subtract(row for row, _ in deleted)
    assert read(foreign(database), CATALOG, "t1")["t1"] == +expected


def test_files_go_when_no_snapshot_names_them_any_more(database, blobs_of_50):
    rows = [((i, "a", None), 1) for i in range(120)]
    commit = database.transaction(t1=rows)
    database.epoch(transaction=commit.number, m4=rows)
    runs = [database.layout.segments / b.file for b in commit.relations["t1"].blobs if b.file.endswith(".run")]
    for _ in range(2):
        fill(database, 2)
        database.compactor.run()
    assert commit.number not in commits(database)
    assert [path.exists() for path in runs] == [True, True]
    deleted = [(row, -1) for row, _ in rows]
    database.epoch(transaction=database.transaction(t1=deleted).number, m4=deleted)
    for _ in range(2):
        fill(database, 2)
        database.compactor.run()
    assert [path.exists() for path in runs] == [False, False]
    assert read(foreign(database), CATALOG, "t1")["t1"].total() == 8


def test_an_overtaken_writer_deletes_nothing_that_the_next_one_names(tmp_path, blobs_of_50, monkeypatch):
    """It stopped before it looked what there is: the next one has deleted the commit whose file its snapshot names."""
    database = Database(tmp_path / "x", cache_bytes=0)
    fill(database, 12)
    checkpoint = database.compactor.run()
    rows = [((i, "a", None), 1) for i in range(120)]
    commit = database.epoch(transaction=database.log.head(), m4=rows)
    cleaner = retention.Cleaner(database.layout, database.log, database.segments)
    count, named = cleaner._count, set()

    def after_the_rival(*given):
        database.lock.release()
        rival = Database(database.layout.root)
        for _ in range(2):
            rival.epoch(transaction=rival.log.head())
        named.update(b.file for b in rival.compactor.run().relations["m4"].blobs)
        assert commit.number not in commits(rival)
        rival.close()
        return count(*given)

    monkeypatch.setattr(cleaner, "_count", after_the_rival)
    with pytest.raises(Error) as raised:
        cleaner.run(checkpoint)
    assert raised.value.condition == "WRITER_FENCED"
    assert commit.relations["m4"].blobs[0].file in named
    assert all((database.layout.segments / name).exists() for name in named)


def test_rows_that_only_come_stay_in_their_order(database, blobs_of_50, monkeypatch):
    monkeypatch.setattr("watersmeet.store.compaction.SMALL_ROWS", 0)
    came, levels = [], []
    for rows in (120, 55, 60):
        database.transaction(t2=[((i, "a", None), 1) for i in range(len(came), len(came) + rows)])
        came += range(len(came), len(came) + rows)
        levels.append(database.compactor.run().relations["t2"].levels)
    assert [[b.rows for level in found for b in level.blobs] for found in levels] == [
        [50, 50, 20],
        [50, 50, 20, 50, 5],
        [50, 50, 20, 50, 5, 50, 10],
    ]
    stored = [database.segments.read_change(b)[0] for level in levels[-1] for b in level.blobs]
    assert [i for table in stored for i in table.column(0).to_pylist()] == came


@pytest.mark.parametrize("damage", [None, lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * len(b)])
def test_a_damaged_snapshot_is_named(database, damage):
    fill(database, 12)
    database.compactor.run()
    name = next(iter(newest_checkpoint(database.layout, database.log).relations["t1"].levels)).blobs[0].file
    path = database.layout.segment(name)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Error, match=name) as raised:
        foreign(database).refresh(CATALOG, ["t1"])
    assert raised.value.condition == "DATABASE_DAMAGED"


def test_a_flipped_bit_of_a_snapshot_is_noticed(database):
    """Where values are that Zstandard can't compress, it keeps them as they are, and reads them back as they are."""
    chance = random.Random(3)
    rows = [((i, f"{chance.random()}", chance.random()), 1) for i in range(1000)]
    database.transaction(t1=rows)
    [blob] = database.compactor.run().relations["t1"].levels[0].blobs
    path = database.layout.segment(blob.file)
    whole = path.read_bytes()
    for share in (0.1, 0.3, 0.5, 0.7, 0.95):
        damaged = bytearray(whole)
        damaged[blob.offset_bytes + int(share * blob.length_bytes)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(Error, match=blob.file):
            SegmentFiles(database.layout.segments).read_change(blob)


@pytest.mark.parametrize("kind", ["t", "s"])
def test_a_missing_file_is_told_at_the_start_and_nothing_is_deleted(database, kind, caplog):
    fill(database, 12)
    database.compactor.run()
    fill(database, 2, start=12)
    root = database.layout.root
    database.close()
    (root / "segments" / "0000000001-1-0-0-orphan.segment").write_bytes(b"orphan")
    gone = next((root / "segments").glob(f"{kind}*.segment"))
    gone.unlink()
    before = {p for p in root.rglob("*") if "readers" not in str(p)}
    Database(root).close()
    assert gone.name in caplog.text
    assert before <= set(root.rglob("*"))


def test_a_stop_ends_the_first_look_at_all_commits(database):
    """In an object store it takes minutes where history is long. The next one goes on, and nothing counts twice."""
    fill(database, 12)
    compactor = database.compactor
    checks = iter([None, None, None])
    compactor._cleaner._check_stop = lambda: next(checks)
    with pytest.raises(StopIteration):
        compactor._cleaner.run(compactor.last)
    assert 0 < compactor._cleaner._counted < database.log.head()
    compactor._cleaner._check_stop = compactor._check_stop
    compactor.run()
    assert commits(database)[0] > 1
    anew = Cleaner(database.layout, database.log, database.segments)
    anew._count(database.log.head(), compactor.last, read_low_water(database.layout))
    assert compactor._cleaner._named == anew._named


def test_what_a_running_epoch_has_written_stays(database):
    fill(database, 12)
    running = database.layout.segment("0000000013-1-0-0-abc.segment")
    zombie = database.layout.segment("0000000012-1-0-0-abc.segment")
    pending = database.layout.segment("t99-1-abc.segment")
    for path in (running, zombie, pending):
        path.write_bytes(b"x")
    database.compactor.run()
    assert running.exists()
    assert not zombie.exists()
    assert pending.exists()
    root = database.layout.root
    database.close()
    again = Database(root)
    assert not running.exists()
    assert not pending.exists()
    again.close()


def failing_once(monkeypatch, folder):
    """The next time files of that folder are to be deleted, none of them is."""
    remove, left = storage.remove_files, [1]

    def failing(places):
        found = list(places)
        if left and any(place.parent.name == folder for place in found):
            left.clear()
            raise error("DATABASE_ACCESS", "the disk is gone for a moment")
        return remove(found)

    monkeypatch.setattr(storage, "remove_files", failing)


def test_a_clean_up_that_is_tried_again_counts_no_file_twice(database, monkeypatch):
    first = database.transaction(t2=[((1, "a", None), 1)])
    (file,) = {b.file for b in first.relations["t2"].blobs}
    fill(database, 12)
    failing_once(monkeypatch, "commits")
    with pytest.raises(Error, match="for a moment"):
        database.compactor.run()
    again = database.log.append(Commit("transaction", relations=first.relations))
    database.compactor.run()
    assert not database.layout.commit(first.number).exists()
    assert database.layout.commit(again.number).exists()
    assert database.layout.segment(file).exists()


def test_a_clean_up_that_is_tried_again_deletes_what_is_left(database, monkeypatch):
    first = database.transaction(t2=[((1, "a", None), 1)])
    (file,) = {b.file for b in first.relations["t2"].blobs}
    fill(database, 12)
    failing_once(monkeypatch, "segments")
    with pytest.raises(Error, match="for a moment"):
        database.compactor.run()
    assert not database.layout.commit(first.number).exists()
    assert database.layout.segment(file).exists()
    database.compactor.run()
    assert not database.layout.segment(file).exists()


def test_runs_that_the_state_still_uses_stay(database):
    """A run file written in epoch 1 that the newest footer names."""
    big = os.urandom(1 << 20)
    first = database.epoch(transaction=0, state=big)
    run = database.segments.read_section(first.segments["0/0"], "0/0")[0]
    for epoch in range(2, 6):
        writer = SegmentWriter(database.layout.segments, epoch_prefix(epoch, database.log.writer, 0, 0), durable=False)
        segment = writer.finish({"0/0": [run]})
        database.log.append(Commit("epoch", epoch=epoch, frontier=Frontier(), segments={"0/0": segment}))
        database.compactor.run()
        assert database.layout.segment(run[0]).exists()
    for _ in range(2):
        database.epoch(transaction=0)
        database.compactor.run()
    assert not database.layout.segment(run[0]).exists()


def test_a_section_that_nothing_names_keeps_no_files(database):
    """A segment stays for the state of one bucket; what it says of another, which has a newer one, does not count."""
    log, segments = database.log, database.layout.segments
    writer = SegmentWriter(segments, epoch_prefix(1, log.writer), durable=False)
    runs = [writer.add([bytes([i]) * (1 << 20)], 1) for i in range(2)]
    first = writer.finish({"1/0": [runs[0]], "1/1": [runs[1]]})
    log.append(Commit("epoch", epoch=1, frontier=Frontier(), segments={"1/0": first, "1/1": first}))
    for epoch in range(2, 5):
        second = SegmentWriter(segments, epoch_prefix(epoch, log.writer), durable=False).finish({"1/1": [epoch]})
        log.append(Commit("epoch", epoch=epoch, frontier=Frontier(), segments={"1/0": first, "1/1": second}))
        database.compactor.run()
    assert (segments / first).exists()
    assert (segments / runs[0].file).exists()
    assert not (segments / runs[1].file).exists()


def test_the_thread_compacts_when_it_is_due_and_survives_errors(database, monkeypatch):
    monkeypatch.setattr(compaction, "_POLL_S", 0.01)
    monkeypatch.setattr(compaction, "_RETRY_S", 0.01)
    calls = []
    original = compaction.Cleaner.run

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            raise OSError("once")
        original(*args, **options)

    monkeypatch.setattr(compaction.Cleaner, "run", failing)
    fill(database, 12)
    database.compactor.start()
    deadline = time.monotonic() + 120
    while not calls and time.monotonic() < deadline:
        time.sleep(0.01)
    fill(database, 12, start=12)
    while len(commits(database)) > 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    database.compactor.stop()
    assert len(commits(database)) <= 10
    assert read(foreign(database), CATALOG, "t1")["t1"].total() == 24


def test_sizes(database):
    sizes = RelationSizes(database.layout, database.log)
    assert sizes.read() == {}
    fill(database, 6)
    database.transaction(t1=[((0, "a", 1.0), -1)])
    found = sizes.read()
    assert (found["t1"].rows, found["m4"].rows) == (5, 6)
    assert found["t1"].size_bytes > 0
    database.compactor.run()
    database.transaction(t1=[((9, "a", 1.0), 3)])
    again = RelationSizes(database.layout, CommitLog(database.layout))
    assert {i: s.rows for i, s in sizes.read().items()} == {"t1": 8, "m4": 6}
    assert {i: s.rows for i, s in again.read().items() if s.rows} == {"t1": 8, "m4": 6}
    sizes.close()
    again.close()


def test_an_old_checkpoint_stays_while_it_is_held(database):
    fill(database, 12)
    database.compactor.run()
    held = newest_checkpoint(database.layout, database.log)
    reader = Reader(database.layout)
    assert reader.try_pin(held.moment.transaction)
    for start in (12, 24):
        fill(database, 12, start=start)
        database.compactor.run()
    assert load_checkpoint(database.layout, held.moment.head) == held
    assert all(database.layout.segment(name).exists() for name in held.files)
    reader.close()
    fill(database, 1, start=36)
    database.compactor.run()
    with pytest.raises(FileNotFoundError):
        load_checkpoint(database.layout, held.moment.head)
    assert low_water_number(database.layout) == newest_checkpoint(database.layout, database.log).moment.transaction


def test_content_of_a_snapshot_is_what_was_written(database):
    table = rows_table([(None, None, float("nan")), (1, "é", -0.0), (1, "é", 0.0)])
    database.transaction(t1=[(tuple(row.values()), 1) for row in table.to_pylist()])
    database.compactor.run()
    assert read(foreign(database), CATALOG, "t1")["t1"] == counted(table)


def test_a_settled_relation_has_its_content_alone(database, monkeypatch):
    """What a view reads that is made now has no row that is gone, whatever checkpoints were made before."""
    monkeypatch.setattr(compaction, "SMALL_ROWS", 0)

    def change(**rows):
        database.epoch(transaction=database.transaction(**rows).number)

    fill(database, 8)
    database.compactor.run()
    change(t1=[((1, "a", 1.0), -1), ((100, "b", 1.0), 1)])
    database.compactor.run()  # a second level, with a row that goes
    assert [level.insert_only for level in database.compactor.last.relations["t1"].levels] == [True, False]
    assert not database.compactor.settle(frozenset(["t1"]))  # of this commit there is a checkpoint
    change(t1=[((2, "a", 1.0), -1)])
    before = read(database.content(), CATALOG, "t1")
    assert database.compactor.settle(frozenset(["t1"]))
    levels = database.compactor.last.relations["t1"].levels
    assert [(level.insert_only, level.rows) for level in levels] == [(True, 7)]
    assert read(foreign(database), CATALOG, "t1") == before
    number = database.compactor.last.moment.head
    assert database.compactor.settle(frozenset(["t1", "m4"]))  # nothing to do
    assert database.compactor.last.moment.head == number
    change(t1=[((200, "b", 1.0), 1)])
    assert database.compactor.settle(frozenset(["t1"]))  # new rows are content
    assert database.compactor.last.moment.head == number
    change(t1=[((200, "b", 1.0), -1)])
    assert database.compactor.settle(frozenset(["t1"]))
    assert database.compactor.last.moment.head > number


def test_memory_is_given_back_after_each_run(tmp_path):
    """Changes are read and merged in many small pieces, which allocators keep: who made it says what to do."""
    database = Database(tmp_path / "y")
    runs = []
    compactor = compaction.Compactor(
        database.layout, database.log, database.segments, lambda: CATALOG, commits=10, after=lambda: runs.append(1)
    )
    fill(database, 10)
    assert compactor.due()
    assert not runs
    compactor.run()
    assert runs == [1]
    database.close()
