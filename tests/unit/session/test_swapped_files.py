"""A file of the database in the place of another: found when it is read, and named; never other content in silence."""

from __future__ import annotations

import shutil

import pytest

import watersmeet


def make(path, *, compacted=False):
    """Tables of the same shape with other content, and two views."""
    with watersmeet.connect(path, runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE t (a bigint, b bigint)")
        connection.execute("CREATE TABLE u (a bigint, b bigint)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a, sum(b) AS s FROM t GROUP BY a")
        connection.execute("CREATE MATERIALIZED VIEW w AS SELECT a, sum(b) AS s FROM u GROUP BY a")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.execute("INSERT INTO u VALUES (1, 2)")
        connection.execute("FLUSH")
        if compacted:
            connection._session.database._compactor.run()
    return path


def swap(one, other):
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def read(path):
    with watersmeet.connect(path, read_only=True) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in "tuvw"]


def go_on(path):
    with watersmeet.connect(path, runtime="inprocess") as connection:
        connection.execute("INSERT INTO t VALUES (2, 2)")
        connection.execute("FLUSH")
    return read(path)


def transactions(path):
    """The files of the commits, and the segments, of the two INSERTs."""
    segments = sorted((path / "segments").glob("t*.segment"))
    return [path / "commits" / f"{int(p.name.split('-')[0][1:]):012d}.json" for p in segments], segments


def copied_commit(path):
    (one, other), _ = transactions(path)
    shutil.copy(one, other)
    return [other]


def swapped_segments(path):
    _, segments = transactions(path)
    swap(*segments)
    return segments


def swapped_plans(path):
    plans = sorted((path / "plans").glob("m*.json"))
    swap(*plans)
    return plans


def swapped_circuits(path):
    plans = [p for p in (path / "plans").iterdir() if not p.name.startswith("m")]
    swap(*plans[:2])
    return plans


def swapped_snapshots(path):
    found = [next((path / "segments").glob("s*.segment")), next((path / "segments").glob("0*.segment"))]
    swap(*found)
    return found


def old_catalog(path):
    *_, before, newest = sorted((path / "catalog").iterdir())
    shutil.copy(before, newest)
    return [newest]


def renamed_checkpoint(path):
    [found] = (path / "snapshots").glob("*.json")
    number = int(found.stem)
    other = found.with_name(f"{number - 1:012d}.json")
    shutil.copy(found, other)
    found.write_bytes(other.read_bytes().replace(b"%012d" % number, b"%012d" % (number - 1)))
    return [found]


CASES = [
    (copied_commit, False),
    (swapped_segments, False),
    (swapped_snapshots, True),
    (old_catalog, False),
    (renamed_checkpoint, True),
]


@pytest.mark.parametrize(("damage", "compacted"), CASES)
def test_a_file_in_the_place_of_another_is_found(tmp_path, damage, compacted):
    path = make(tmp_path / "db", compacted=compacted)
    assert read(path) == [[(1, 1)], [(1, 2)]] * 2
    names = {p.name for p in damage(path)}
    with pytest.raises(watersmeet.Error) as found:
        go_on(path)
    assert found.value.condition in ("DATABASE_DAMAGED", "STATE_DAMAGED")
    assert any(name in found.value.message for name in names), found.value.message
    with pytest.raises(watersmeet.Error) as found:
        read(path)
    assert found.value.condition == "DATABASE_DAMAGED"


@pytest.mark.parametrize("damage", [swapped_plans, swapped_circuits])
def test_a_plan_in_the_place_of_another_is_named_and_restored(tmp_path, damage, caplog):
    path = make(tmp_path / "db", compacted=False)
    names = {p.name for p in damage(path)}
    go_on(path)
    assert any(name in caplog.text for name in names), caplog.text
    caplog.clear()
    go_on(path)
    assert "restored" not in caplog.text


def test_a_file_of_another_database_is_refused(tmp_path):
    """Two databases that were made alike have files of the same names."""
    one, other = make(tmp_path / "one"), make(tmp_path / "other")
    newest = max((one / "commits").glob("*.json"))
    shutil.copy(other / "commits" / newest.name, newest)
    with pytest.raises(watersmeet.Error, match=f"{newest.name}.* another database") as found:
        read(one)
    assert found.value.condition == "DATABASE_DAMAGED"


def test_a_copy_of_a_database_is_a_database(tmp_path):
    one = make(tmp_path / "one")
    shutil.copytree(one, tmp_path / "other")
    assert go_on(tmp_path / "other") == [[(1, 1), (2, 2)], [(1, 2)], [(1, 1), (2, 2)], [(1, 2)]]
    assert read(one) == [[(1, 1)], [(1, 2)]] * 2
