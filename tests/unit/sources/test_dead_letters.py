from __future__ import annotations

from pathlib import Path

from watersmeet.connectors.base.deadletters import MAX_TEXT, DeadLetterWriter, read_dead_letters


def test_an_epoch_run_again_writes_the_same_file(tmp_path: Path) -> None:
    directory = tmp_path / "dead" / "s1"
    for _ in range(2):
        with DeadLetterWriter(directory, 7, 3) as letters:
            letters.add("a.csv", 3, "fields: 1 instead of 2", "x" * 5000)
            letters.add("b.csv", None, "schema: other", rows=10)
        assert (letters.count, letters.rows) == (2, 11)
        assert letters.first == letters.records[0]
    records = read_dead_letters(directory)
    assert [r["file"] for r in records] == ["a.csv", "b.csv"]
    assert len(records[0]["text"]) == MAX_TEXT
    assert len(list(directory.iterdir())) == 1
    with DeadLetterWriter(directory, 7, 3):
        pass
    assert list(directory.iterdir()) == []


def test_without_a_directory_only_counts() -> None:
    with DeadLetterWriter(None) as letters:
        letters.add_rows("a", [1, 2], ["x", "y"], ["t", "u"])
    assert (letters.count, letters.rows) == (2, 2)
    assert letters.first == {"file": "a", "line": 1, "reason": "x", "text": "t"}
