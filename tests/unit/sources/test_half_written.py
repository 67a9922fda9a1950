"""A record that is half written waits for its line end; after an age it is one dead letter, not two."""

from __future__ import annotations

from pathlib import Path

from tests.unit.sources.helpers import T0, Driver, S, file_source, put

MINUTE = 60 * S


def test_a_json_record_that_is_half_written_waits_longer_than_files_settle(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, format="json"))
    file = put(tmp_path / "a.json", '{"a": 1}\n{"a": 2, "b', T0)
    assert driver.all(T0) == [(1, None)]
    assert driver.all(T0 + 10 * S) == []
    assert driver.source.status()["pending_files"] == 1
    put(file, '": "x"}\n', T0 + 20 * S, append=True)
    assert driver.all(T0 + 20 * S) == [(2, "x")]
    assert driver.dead == []
    assert driver.last.pending == 0


def test_a_json_record_without_line_end_that_is_complete_is_read_when_the_file_has_settled(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, format="json"))
    put(tmp_path / "a.json", '{"a": 1}\n{"a": 2}', T0)
    assert driver.all(T0 + 3 * S) == [(1, None), (2, None)]


def test_after_an_age_a_half_written_record_is_one_dead_letter(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, format="json"))
    file = put(tmp_path / "a.json", '{"a": 1}\n{"a": 2, "b', T0)
    assert driver.all(T0 + MINUTE) == [(1, None)]
    assert driver.all(T0 + MINUTE + 3 * S) == []
    assert [d["line"] for d in driver.dead] == [2]
    put(file, '": "x', T0 + 2 * MINUTE, append=True)
    assert driver.all(T0 + 2 * MINUTE) == []
    put(file, 'y"}\n{"a": 3}\n', T0 + 2 * MINUTE + S, append=True)
    assert driver.all(T0 + 2 * MINUTE + S) == [(3, None)]
    assert [d["line"] for d in driver.dead] == [2]
    assert driver.slices[-1].line == 3


def test_what_follows_a_complete_record_on_its_line_is_read(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path, format="json"))
    file = put(tmp_path / "a.json", '{"a": 1}', T0)
    assert driver.all(T0 + 3 * S) == [(1, None)]
    put(file, ' {"a": 2}\n', T0 + 4 * S, append=True)
    assert driver.all(T0 + 4 * S) == [(2, None)]


def test_the_last_line_of_a_csv_file_that_grows_waits_for_its_line_end(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n", T0)
    assert driver.all(T0) == [(1, "x")]
    put(file, "2,hal", T0 + S, append=True)
    assert driver.all(T0 + 10 * S) == []
    put(file, "f\n3,y", T0 + 11 * S, append=True)
    assert driver.all(T0 + 11 * S) == [(2, "half")]
    assert driver.all(T0 + 20 * S) == []
    assert driver.all(T0 + 2 * MINUTE) == [(3, "y")]


def test_a_csv_row_without_all_values_waits_for_its_line_end(tmp_path: Path) -> None:
    driver = Driver(file_source(tmp_path))
    file = put(tmp_path / "a.csv", "a,b\n1,x\n2", T0)
    assert driver.all(T0 + 10 * S) == [(1, "x")]
    put(file, ",y\n", T0 + 11 * S, append=True)
    assert driver.all(T0 + 11 * S) == [(2, "y")]
    assert driver.dead == []


def test_how_long_a_half_written_record_waits_is_an_option(tmp_path: Path) -> None:
    at_once = Driver(file_source(tmp_path, format="json", incomplete_ms="0"))
    put(tmp_path / "a.json", '{"a": ', T0)
    assert at_once.all(T0 + 3 * S) == []
    assert len(at_once.dead) == 1
    no_settling = Driver(file_source(tmp_path, format="json", settle_ms="0"))
    assert no_settling.all(T0) == []
    assert len(no_settling.dead) == 1
