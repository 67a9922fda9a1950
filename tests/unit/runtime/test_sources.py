"""Sources in epochs: files, restart with and without saved memory, backfill from history, records that can't be
read.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.unit.runtime import trees
from tests.unit.runtime.kit import Kit

from watersmeet.catalog import Source
from watersmeet.connectors.base.deadletters import read_dead_letters
from watersmeet.runtime import coordinator as coordinating
from watersmeet.runtime.coordinator import Coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.workers import Budget
from watersmeet.values.serialization import to_json
from watersmeet.values.types import BIGINT, VARCHAR, Field


def small(db):
    return InProcessEngine(db, make_coordinator=partial(Coordinator, budget=Budget(first_rows=10, max_rows=20)))


def made(tmp_path, *, key=(), kind=Source, **options):
    (tmp_path / "in").mkdir()
    kit = Kit(tmp_path / "db", make_engine=small)
    connector = {"connector": "file", "path": str(tmp_path / "in"), "format": "csv", "csv.header": "false", **options}
    columns = (Field("k", BIGINT), Field("x", VARCHAR))
    relation = kit.relation(
        kind(kit.catalog.new_id(kind), "s", columns, primary_key=key, append_only=not key, connector=connector)
    )
    return kit, relation


def write(tmp_path, name, *rows):
    part = tmp_path / f".{name}"
    part.write_text("".join(f"{k},{x}\n" for k, x in rows))
    part.rename(tmp_path / "in" / name)


def counted(kit):
    return trees.group(trees.scan(kit.catalog.by_name("s"), append_only=True), ["k"], ("n", "count", None))


def counts(kit, name="counted"):
    kit.content.refresh(kit.catalog, [kit.catalog.by_name(name).id])
    return dict(kit.content.query(f'SELECT k, n FROM "{name}" ORDER BY k').to_pandas().to_numpy().tolist())


SQL = "SELECT 1 AS k, 2 AS n"


@pytest.mark.parametrize("save_every", [1, 1000])
def test_files_are_read_once_through_restarts(tmp_path, save_every, monkeypatch):
    monkeypatch.setattr(coordinating, "SAVE_EPOCHS", save_every)
    kit, _ = made(tmp_path)
    kit.engine.start()
    kit.view("counted", counted, SQL)
    for number in range(5):
        write(tmp_path, f"{number}.csv", *[(i % 3, "x") for i in range(15)])
        kit.engine.flush()
        assert counts(kit) == {k: 5 * (number + 1) for k in range(3)}
        if number % 2:
            kit.close()
        else:
            kit.crash()
        kit = kit.reopen()
        kit.engine.start()
        kit.engine.flush()
        assert counts(kit) == {k: 5 * (number + 1) for k in range(3)}
    assert kit.engine.status().source("s1").rows == 75
    kit.close()


def test_a_later_view_reads_the_files_again(tmp_path):
    kit, _ = made(tmp_path)
    kit.engine.start()
    kit.view("counted", counted, SQL)
    write(tmp_path, "0.csv", *[(i, "x") for i in range(40)])
    (tmp_path / "in" / "1.csv").write_text("1,x\nbad,x\n2,y\n")
    kit.engine.flush()
    kit.view("counted2", counted, SQL)
    assert counts(kit) == counts(kit, "counted2")
    write(tmp_path, "2.csv", (1, "z"))
    kit.engine.flush()
    assert counts(kit) == counts(kit, "counted2")
    assert counts(kit)[1] == 3
    # The record is set aside and counted once, though two views read it.
    assert len(read_dead_letters(kit.layout.dead("s1"))) == 1
    status = kit.engine.status().source("s1")
    assert (status.dead, status.rows) == (1, 43)
    kit.close()


def test_on_error_stop(tmp_path):
    kit, _ = made(tmp_path, on_error="stop")
    kit.engine.start()
    kit.view("counted", counted, SQL)
    (tmp_path / "in" / "1.csv").write_text("1,x\nbad,x\n")
    kit.engine.flush()
    said = kit.engine.sources()["s1"]
    assert (said["state"], "1.csv, line 2" in said["reason"]) == ("stalled", True)
    assert (kit.engine.status().state, counts(kit)) == ("running", {})
    (tmp_path / "in" / "1.csv").unlink()
    kit.engine.flush()
    assert kit.engine.sources()["s1"].get("state", "running") == "running"
    kit.close()


def test_source_memory_of_dropped_relations_goes(tmp_path):
    kit, relation = made(tmp_path)
    kit.engine.start()
    kit.view("counted", counted, SQL)
    write(tmp_path, "0.csv", (1, "x"))
    kit.engine.flush()
    kit.drop("counted")
    assert (kit.layout.root / "sources" / "s1-1.saved").exists()
    kit.catalog = kit.catalog.without({relation.id})
    kit.install()
    assert not (kit.layout.root / "sources" / "s1-1.saved").exists()
    kit.close()


def test_an_overtaken_writer_leaves_the_memory_of_the_next_one_alone(tmp_path):
    kit, _ = made(tmp_path)
    kit.engine.start()
    kit.view("counted", counted, SQL)
    write(tmp_path, "0.csv", (1, "x"))
    kit.engine.flush()
    newer = kit.reopen()
    newer.engine.start()
    write(tmp_path, "1.csv", (1, "x"))
    newer.engine.flush()
    newer.close()
    saved = {p.name: p.read_bytes() for p in (kit.layout.root / "sources").glob("*.saved")}
    assert set(saved) == {"s1-2.saved", "COMMIT-2.saved"}
    kit.close()
    assert saved.items() <= {p.name: p.read_bytes() for p in (kit.layout.root / "sources").glob("*.saved")}.items()
    again = newer.reopen()
    again.engine.start()
    write(tmp_path, "2.csv", (1, "x"))
    again.engine.flush()
    assert counts(again) == {1: 3}
    again.close()
    assert {p.name for p in (kit.layout.root / "sources").glob("*.saved")} == {"s1-3.saved", "COMMIT-3.saved"}


def test_slices_are_in_the_commit(tmp_path):
    kit, _ = made(tmp_path)
    kit.engine.start()
    kit.view("counted", counted, SQL)
    write(tmp_path, "0.csv", (1, "x"))
    commit = kit.engine.flush()
    assert [s.path for s in commit.progress.taken["s1"]] == ["0.csv"]
    assert json.loads(json.dumps(to_json(commit.frontier)))["sources"]["s1"]["slices"] == 1
    kit.close()
