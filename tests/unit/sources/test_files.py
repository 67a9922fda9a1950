"""Finding input in directories: order, growth, half-written files, files that change, budgets, restart."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.thorough import mostly_slow, some
from tests.unit.sources.helpers import AB, T0, Driver, S, file_source, put, relation, stored

from watersmeet.connectors.files import listing
from watersmeet.connectors.files import source as files
from watersmeet.connectors.registry import check_connector, open_source
from watersmeet.errors import Error


def parquet(path: Path, rows: int, at_us: int = T0 - 60 * S, group: int = 10) -> Path:
    table = pa.table({"a": pa.array(range(rows), pa.int32()), "b": [f"r{i}" for i in range(rows)]})
    pq.write_table(table, path, row_group_size=group)
    os.utime(path, ns=(at_us * 1000, at_us * 1000))
    return path


def test_files_come_in_order_of_time_then_name(tmp_path: Path) -> None:
    put(tmp_path / "z.csv", "a,b\n1,x\n", T0 - 30 * S)
    put(tmp_path / "c.csv", "a,b\n3,x\n", T0 - 20 * S)
    put(tmp_path / "b.csv", "a,b\n2,x\n", T0 - 20 * S)
    assert [a for a, _ in Driver(file_source(tmp_path)).all()] == [1, 2, 3]


@pytest.mark.parametrize(("form", "expected"), [("", [2, 1, 3]), ("%d%m%Y", [3, 2, 1])])
def test_files_come_in_the_order_of_the_times_in_their_names(tmp_path: Path, form: str, expected: list[int]) -> None:
    for number, name in enumerate(["x-02012024.csv", "x-01012024.csv", "x-31122023.csv", "y-01012020.csv"], 1):
        put(tmp_path / name, f"a,b\n{number},x\n", T0 - (30 - number) * S)
    source = file_source(tmp_path, name_regex=r"x-(\d{8})\.csv", sorted_by=form)
    assert [a for a, _ in Driver(source).all()] == expected


def test_nothing_is_given_twice_and_new_files_are_found(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    assert driver.all() == []
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    assert driver.all() == [(1, "x")]
    assert driver.all() == []
    put(tmp_path / "b.csv", "a,b\n2,y\n")
    assert driver.all() == [(2, "y")]


def test_a_file_with_an_old_time_stamp_is_read(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "new.csv", "a,b\n1,x\n", T0)
    assert driver.all() == [(1, "x")]
    put(tmp_path / "old.csv", "a,b\n2,y\n", T0 - 4000 * 86_400 * S)
    assert driver.all() == [(2, "y")]


def test_hidden_and_temporary_names_and_subdirectories_are_left_out(tmp_path: Path) -> None:
    for name in (".a.csv", "_b.csv", "c.csv.tmp", "d.csv"):
        put(tmp_path / name, "a,b\n1,x\n")
    (tmp_path / "sub").mkdir()
    put(tmp_path / "sub" / "e.csv", "a,b\n2,x\n")
    assert len(Driver(file_source(tmp_path)).all()) == 1
    assert len(Driver(file_source(tmp_path, recursive="true")).all()) == 2


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("", "a*.csv", 1),
        ("a*.csv", None, 1),
        ("", "**/*.csv", 3),
        ("sub/*.csv", None, 1),
        ("a1.csv", None, 1),
        ("[ab]?.csv", None, 2),
    ],
)
def test_patterns(tmp_path: Path, path: str, pattern: str | None, expected: int) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a1.csv", "b1.csv", "sub/c.csv", "other.txt"):
        put(tmp_path / name, "a,b\n1,x\n")
    options = {} if pattern is None else {"match_pattern": pattern}
    assert len(Driver(file_source(tmp_path / path, **options)).all()) == expected


def test_a_growing_file_is_read_line_by_line(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2,h", T0)
    assert driver.all(T0) == [(1, "x")]
    assert (driver.last.pending, driver.last.next_us) == (1, T0 + 2 * S)
    put(file, "alf\n3,y\n", T0 + S, append=True)
    assert driver.all(T0 + S) == [(2, "half"), (3, "y")]
    assert driver.last.pending == 0


def test_a_last_line_without_newline_is_taken_when_the_file_has_settled(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2,end", T0)
    assert driver.all(T0 + S) == [(1, "x")]
    assert driver.all(T0 + 2 * S) == [(2, "end")]
    put(file, "\n3,z\n", T0 + 3 * S, append=True)
    assert driver.all(T0 + 3 * S) == [(3, "z")]
    assert driver.slices[-1].line == 4


def test_settling_does_not_need_the_clock_of_the_file(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, settle_ms="1000"))
    put(tmp_path / "a.csv", "a,b\n1,x", T0 + 3600 * S)
    assert driver.all(T0) == []
    assert driver.all(T0 + S) == [(1, "x")]


def test_a_header_that_is_half_written_waits(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,", T0)
    assert driver.all(T0) == []
    put(file, "b\n1,x\n", T0 + S, append=True)
    assert driver.all(T0 + S) == [(1, "x")]


def test_a_quoted_field_that_is_half_written_waits(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", 'a,b\n1,"one\n', T0)
    assert driver.all(T0) == []
    put(file, 'two"\n', T0 + S, append=True)
    assert driver.all(T0 + S) == [(1, "one\ntwo")]


def test_a_replaced_file_is_counted_and_not_read_again(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    for name in ("smaller", "other", "same_size"):
        put(tmp_path / f"{name}.csv", "a,b\n1,x\n2,y\n", T0 - 60 * S)
    put(tmp_path / "touched.csv", "a,b\n1,x\n2,y\n", T0 - 60 * S)
    assert len(driver.all()) == 8
    put(tmp_path / "smaller.csv", "a,b\n7,q\n", T0)
    put(tmp_path / "other.csv", "a,b\n7,q\n8,r\n9,s\n", T0)
    put(tmp_path / "same_size.csv", "a,b\n7,q\n8,r\n", T0)
    put(tmp_path / "touched.csv", "a,b\n1,x\n2,y\n", T0)
    assert driver.all() == []
    status = driver.source.status()
    assert (status["replaced_files"], status["replaced"]) == (3, ["other.csv", "same_size.csv", "smaller.csv"])


def test_a_file_replaced_between_poll_and_read_is_set_aside(tmp_path: Path) -> None:
    source = file_source(tmp_path)
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2,y\n")
    poll = source.poll(None, 100, 1000, T0, fresh=True)
    put(file, "a,b\n7,q\n8,r\n")
    driver = Driver(source)
    assert driver.read(poll.slices) == []
    assert driver.reasons() == [("a.csv", None, "replaced")]
    assert driver.dead[0]["rows"] == 2


def test_a_file_that_vanishes_between_poll_and_read_is_set_aside(tmp_path: Path) -> None:
    source = file_source(tmp_path)
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    poll = source.poll(None, 100, 1000, T0, fresh=True)
    file.unlink()
    driver = Driver(source)
    assert driver.read(poll.slices) == []
    assert driver.reasons() == [("a.csv", None, "vanished")]
    tmp_path.rmdir()
    with pytest.raises(Error, match="RUNTIME_UNAVAILABLE"):
        driver.read(poll.slices)


def test_a_file_that_vanishes_before_its_turn_is_set_aside_and_counted(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path), budget_rows=1)
    put(tmp_path / "a.csv", "a,b\n1,x\n", T0 - 60 * S)
    file = put(tmp_path / "b.csv", "a,b\n2,y\n", T0 - 50 * S)
    assert driver.once() == [(1, "x")]
    file.unlink()
    assert driver.all() == []
    assert driver.reasons() == [("b.csv", None, "vanished")]
    assert driver.source.status()["vanished_files"] == 1
    put(file, "a,b\n2,y\n")
    assert driver.all() == [(2, "y")]


def test_a_file_renamed_before_its_turn_did_not_vanish(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path), budget_rows=1)
    put(tmp_path / "a.csv", "a,b\n1,x\n", T0 - 60 * S)
    file = put(tmp_path / "b.inprogress", "a,b\n2,y\n", T0 - 50 * S)
    assert driver.once() == [(1, "x")]
    file.rename(tmp_path / "b.csv")
    assert driver.all() == [(2, "y")]
    assert driver.dead == []


def test_a_read_file_may_be_deleted(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n")
    driver.all()
    file.unlink()
    assert driver.all() == []
    assert driver.source.status()["vanished_files"] == 0


def test_the_directory_may_be_away_for_a_while(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    driver = Driver(file_source(root), budget_rows=1)
    put(root / "a.csv", "a,b\n1,x\n2,y\n")
    assert driver.once() == [(1, "x")]
    root.rename(tmp_path / "away")
    assert driver.once() == []
    assert "in" in driver.source.status()["problem"]
    (tmp_path / "away").rename(root)
    assert driver.all(T0 + 3 * S) == [(2, "y")]
    assert (driver.dead, driver.source.status()["problem"]) == ([], None)


def test_an_unreadable_file_is_shown_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    put(tmp_path / "b.csv", "a,b\n2,x\n")
    original = listing.open_file

    def refusing(root: str, name: str) -> object:
        if name == "a.csv":
            raise PermissionError(13, "Permission denied")
        return original(root, name)

    monkeypatch.setattr(listing, "open_file", refusing)
    assert driver.all() == [(2, "x")]
    status = driver.source.status()
    assert (status["unreadable"], status["pending_files"]) == ([["a.csv", "Permission denied"]], 1)
    monkeypatch.undo()
    assert driver.all(T0 + S) == []
    assert driver.all(T0 + 3 * S) == [(1, "x")]
    assert driver.source.status()["unreadable_files"] == 0


def test_parquet_without_footer_waits_then_counts_as_damaged(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, format="parquet"))
    good = parquet(tmp_path / "good.parquet", 3).read_bytes()
    assert len(driver.all(T0)) == 3
    put(tmp_path / "half.parquet", good[: len(good) // 2], T0)
    put(tmp_path / "junk.parquet", b"PAR1junk" * 4 + b"PAR1", T0)
    assert driver.all(T0 + S) == []
    assert (driver.last.pending, driver.last.next_us) == (2, T0 + 2 * S)
    assert driver.all(T0 + 2 * S) == []
    assert driver.reasons() == [("half.parquet", None, "damaged"), ("junk.parquet", None, "damaged")]
    assert driver.source.status()["damaged_files"] == 2
    assert driver.all(T0 + 9 * S) == []
    put(tmp_path / "half.parquet", good, T0 + 10 * S)
    assert len(driver.all(T0 + 10 * S)) == 3


def test_parquet_is_cut_by_row_groups(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", 45)
    driver = Driver(file_source(tmp_path, format="parquet"), budget_rows=20)
    assert [len(driver.once()) for _ in range(4)] == [20, 20, 5, 0]
    assert [(s.begin, s.end) for s in driver.slices] == [(0, 2), (2, 4), (4, 5)]
    assert [s.line for s in driver.slices] == [1, 21, 41]
    small = Driver(file_source(tmp_path, format="parquet"), budget_rows=1)
    assert len(small.once()) == 10


def test_gzip_is_one_slice_once_it_has_settled(tmp_path: Path) -> None:
    put(tmp_path / "a.csv.gz", gzip.compress(b"a,b\n" + b"1,x\n" * 1000), T0)
    put(tmp_path / "b.csv.gz", gzip.compress(b"a,b\n1,x\n")[:-6], T0)
    driver = Driver(file_source(tmp_path))
    assert driver.all(T0 + S) == []
    assert driver.all(T0 + 2 * S) == [(1, "x")] * 1000
    assert driver.reasons() == [("b.csv.gz", None, "damaged")]
    assert driver.all(T0 + 5 * S) == []


def test_a_poll_keeps_the_budget_but_gives_at_least_a_row(tmp_path: Path) -> None:
    for i in range(10):
        put(tmp_path / f"{i}.csv", "a,b\n" + "1,x\n" * 10)
    driver = Driver(file_source(tmp_path), budget_rows=25)
    assert [len(driver.once()) for _ in range(5)] == [25, 25, 25, 25, 0]
    by_bytes = Driver(file_source(tmp_path), budget_bytes=41)
    assert len(by_bytes.once()) == 10
    tiny = Driver(file_source(tmp_path), budget_bytes=1)
    assert len(tiny.once()) == 1
    limited = Driver(file_source(tmp_path, max_rows_per_epoch="7"))
    assert (len(limited.once()), limited.last.more) == (7, True)


def test_a_poll_that_is_not_accepted_may_be_forgotten(tmp_path: Path) -> None:
    source = file_source(tmp_path)
    put(tmp_path / "a.csv", "a,b\n1,x\n")
    first = source.poll(None, 100, 100, T0, fresh=True)
    assert source.poll(None, 100, 100, T0 + S, fresh=True) == first


@pytest.mark.parametrize("saved_after", [0, 1, 2, 3])
def test_restart_from_a_save_and_later_slices(tmp_path: Path, saved_after: int) -> None:
    root = tmp_path / "in"
    root.mkdir()
    put(root / "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    put(root / "b.csv", "a,b\n4,x\n5,y\n")
    driver = Driver(file_source(root), budget_rows=1)
    save = tmp_path / "seen" / "seen-1.json"
    driver.source.save(save)
    rows = []
    for step in range(3):
        rows += driver.once()
        if step + 1 == saved_after:
            driver.source.save(save)
    again = Driver(file_source(root), budget_rows=1)
    again.source.load(save)
    again.source.accept(stored(driver.slices))
    again.position = driver.position
    assert rows + again.all() == [(1, "x"), (2, "y"), (3, "z"), (4, "x"), (5, "y")]
    assert again.history() == [(1, "x"), (2, "y"), (3, "z"), (4, "x"), (5, "y")]


def test_a_gap_in_the_slices_is_damage(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "a,b\n1,x\n2,y\n3,z\n")
    driver = Driver(file_source(tmp_path), budget_rows=1)
    driver.all()
    other = file_source(tmp_path)
    with pytest.raises(Error, match="DATABASE_DAMAGED"):
        other.accept(driver.slices[1:])
    with pytest.raises(Error, match="DATABASE_DAMAGED"):
        other.poll(driver.position, 10, 10, T0)
    put(tmp_path / "broken.json", "{")
    with pytest.raises(Error, match="DATABASE_DAMAGED"):
        other.load(tmp_path / "broken.json")


def test_history_gives_all_input_in_order_of_arrival(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    put(tmp_path / "a.csv", "a,b\n1,x\n", T0 - 30 * S)
    put(tmp_path / "b.csv", "a,b\n2,x\n", T0 - 20 * S)
    rows = driver.all()
    put(tmp_path / "a.csv", "3,x\n4,x\n", T0 - 10 * S, append=True)
    put(tmp_path / "c.csv", "a,b\n5,x\n", T0)
    rows += driver.all()
    assert driver.history() == driver.history(budget_rows=1) == rows
    put(tmp_path / "d.csv", "a,b\n6,x\n", T0)
    (tmp_path / "b.csv").unlink()
    assert [a for a, _ in driver.history()] == [1, 3, 4, 5]
    assert driver.reasons()[-1] == ("b.csv", None, "vanished")
    assert driver.source.status()["history_lost"] == ["b.csv"]


@pytest.mark.parametrize("seed", mostly_slow(range(6), 1))
def test_files_that_are_read_once_more(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each poll, and after restarts anywhere, the history is what was given, however it is cut."""
    rng = random.Random(seed)
    monkeypatch.setattr(files, "_AGAIN_ROWS", rng.choice((1, 2, 3, 100)))
    root, save = tmp_path / "in", tmp_path / "seen-1.json"
    root.mkdir()
    form = rng.choice(("csv", "parquet"))
    count = 0
    for number in range(3):
        if form == "csv":
            lines = rng.randrange(1, 6)
            text = "".join(f"{count + n},x\n" for n in range(lines))
            put(root / f"{number}.csv", f"a,b\n{text}", T0 - (30 - number) * S)
        else:
            lines = rng.randrange(1, 25)
            parquet(root / f"{number}.parquet", lines, T0 - (30 - number) * S)
        count += lines
    repeat = rng.choice(("1", "2", "-1"))
    options = {"format": form, "settle_ms": "0", "repeat": repeat}
    driver = Driver(file_source(root, **options), budget_rows=rng.choice((1, 3, 1 << 20)))
    driver.source.save(save)
    rows: list[tuple[object, ...]] = []
    for _ in range(60):
        rows += driver.once()
        assert driver.history(budget_rows=rng.choice((1, 4, 1 << 20))) == rows
        if rng.random() < 0.1:
            driver.source.save(save)
        if rng.random() < 0.2:
            source = file_source(root, **options)
            source.load(save)
            source.accept(stored(driver.slices))
            driver.source = source
        if not driver.last.more and repeat != "-1":
            break
    once = rows[:count]
    times = len(rows) // count
    assert len(once) == count
    assert rows == (once * (times + 1))[: len(rows)]
    if repeat != "-1":
        assert times == int(repeat) + 1
        assert len(rows) == count * times
        put(root / f"late.{form}", "a,b\n7,x\n")
        assert driver.all() == []
    else:
        assert times > 2


def test_history_of_parquet(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", 45)
    driver = Driver(file_source(tmp_path, format="parquet"), budget_rows=20)
    rows = driver.once() + driver.once()
    assert driver.history(budget_rows=10) == driver.history() == rows


def test_many_small_files_come_in_bounded_polls(tmp_path: Path) -> None:
    for i in range(1100):
        put(tmp_path / f"{i:04}.csv", "a,b\n1,x\n")
    driver = Driver(file_source(tmp_path))
    assert (len(driver.once()), driver.last.more) == (1000, True)
    assert (len(driver.once()), driver.last.more) == (100, False)


def test_an_idle_source_seldom_looks_and_then_only_at_recent_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "old.csv", "a,b\n1,x\n", T0 - 3600 * S)
    put(tmp_path / "open.csv", "a,b\n2,x\n", T0 - S)
    os.utime(tmp_path, ns=(T0 * 1000 - S * 1000, T0 * 1000 - S * 1000))
    driver = Driver(file_source(tmp_path))
    driver.all()
    walks = []
    original = listing.Listing._all
    monkeypatch.setattr(listing.Listing, "_all", lambda *a: walks.append(1) or original(*a))
    for i in range(1, 90):
        assert driver.once(T0 + i * S // 10, fresh=False) == []
    assert walks == []
    put(tmp_path / "open.csv", "3,x\n", T0 + 9 * S, append=True)
    assert driver.once(T0 + 10 * S, fresh=False) == [(3, "x")]
    put(tmp_path / "new.csv", "a,b\n4,x\n", T0)
    assert driver.once(T0 + 11 * S, fresh=False) == [(4, "x")]
    assert len(walks) == 2 or len(walks) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option path"),
        ({"path": "/does/not/exist", "format": "csv"}, "does not exist"),
        ({"path": ".", "format": "orc"}, 'format "orc" is not supported'),
        ({"path": "."}, "needs a format"),
        ({"path": ".", "format": "csv", "delimitr": ";"}, 'no option "delimitr"'),
        ({"path": ".", "format": "csv", "delimiter": ";;"}, "can't be"),
        ({"path": ".", "format": "json", "delimiter": ";"}, 'no option "delimiter"'),
        ({"path": ".", "format": "csv", "on_error": "panic"}, "can't be"),
        ({"path": ".", "format": "csv", "max_rows_per_epoch": "0"}, "can't be 0"),
        ({"path": ".", "format": "csv", "csv__header": "maybe"}, "can't be"),
        ({"path": ".", "format": "csv", "csv__header": "true", "without_header": "true"}, "contradict"),
        ({"path": ".", "posix_fs__root": "/", "format": "csv"}, "contradict each other"),
    ],
)
def test_options_that_can_not_work_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(Error, match="CONNECTOR_OPTION") as caught:
        open_source(relation(AB, connector="file", **options))
    assert message in caught.value.message


def test_hints_name_near_options_and_connectors() -> None:
    with pytest.raises(Error) as caught:
        open_source(relation(AB, connector="file", path=".", format="csv", delimitr=";"))
    assert caught.value.hint == 'Did you mean "delimiter" or "csv.delimiter"?'
    with pytest.raises(Error) as caught:
        open_source(relation(AB, connector="datagn"))
    assert caught.value.hint == 'Did you mean "datagen"?'


def test_the_catalog_keeps_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    put(tmp_path / "in" / "a.csv", "a,b\n1,x\n")
    monkeypatch.chdir(tmp_path)
    kept = check_connector(relation(AB, connector="file", path="in/*.csv"))
    monkeypatch.chdir("/")
    assert Driver(open_source(kept)).all() == [(1, "x")]


def test_risingwave_spelling(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "1;x\n")
    put(tmp_path / "b.txt", "2;x\n")
    source = open_source(
        relation(
            AB,
            connector="posix_fs",
            posix_fs__root=str(tmp_path),
            match_pattern="*.csv",
            format="plain",
            encode="csv",
            without_header="true",
            delimiter=";",
        )
    )
    assert Driver(source).all() == [(1, "x")]


@pytest.mark.parametrize("seed", some(range(40)))
def test_withdrawn_slices_are_as_if_they_had_never_been_read(tmp_path, seed):
    """Of new files and of files that grow, up to any slice; a repeated withdrawal changes nothing."""
    pick = random.Random(seed)
    folder = tmp_path / "in"
    folder.mkdir()
    whole = Driver(file_source(folder), budget_rows=2)
    for number in range(12):
        lines = "".join(f"{n},x\n" for n in range(pick.randrange(1, 5)))
        name = f"{pick.randrange(5)}.csv"
        there = (folder / name).exists()
        put(folder / name, lines if there else f"a,b\n{lines}", T0 - (60 - number) * S, append=there)
        while whole.once(T0 + number * S):
            pass
    kept = pick.randrange(len(whole.slices) + 1)
    first, withdrawn = Driver(file_source(folder)), Driver(file_source(folder))
    first.source.accept(whole.slices[:kept])
    whole.source.save(tmp_path / "saved")
    withdrawn.source.load(tmp_path / "saved")
    for _ in range(2):
        withdrawn.source.withdraw(whole.slices[kept:])
    assert withdrawn.history() == first.history()
    assert sorted(first.history()) == sorted(whole.read(whole.slices[:kept]))
    withdrawn.source.save(tmp_path / "saved")
    again = Driver(file_source(folder))
    again.source.load(tmp_path / "saved")
    for driver in (first, again):
        driver.position = {"slices": kept} if kept else None
        assert sorted(driver.all(T0 + 99 * S)) == sorted(whole.read(whole.slices[kept:])), "the rest is read once"
        assert sorted(driver.history()) == sorted(whole.read(whole.slices))
