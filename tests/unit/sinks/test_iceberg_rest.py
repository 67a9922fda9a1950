"""Sinks to tables of Iceberg whose catalog is reached by REST."""

from __future__ import annotations

import pytest
from tests.lakes import rest_catalog
from tests.unit.sinks import test_iceberg as tables
from tests.unit.sinks.batches import batch
from tests.unit.sinks.databasetargets import is_done, wait
from tests.unit.sinks.test_iceberg import content

import watersmeet
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import SinkOffset
from watersmeet.errors import Error


@pytest.fixture
def rest(tmp_path):
    with rest_catalog(tmp_path) as server:
        yield server


def through(rest, **more):
    """What a sink's options say of the catalog."""
    return {"catalog.type": "rest", "catalog.uri": rest.uri, "catalog.token": rest.token, **more}


def target(rest, path, **more):
    rows = more.pop("rows", "upsert")
    return tables.target(path, rows=rows, **through(rest, **more))


def test_a_table_is_made_partitioned_and_written(rest, tmp_path):
    sink = target(rest, tmp_path, partition_by="name")
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"), (2, "b"))])
    sink.deliver([batch(4, (1, "a"), (1, "c"), diff=[-1, 1])])
    assert content(tmp_path) == [(1, "c"), (2, "b")]
    assert [f.name for f in tables.read(tmp_path).spec().fields] == ["name"]
    assert target(rest, tmp_path).open(1) == SinkOffset(1, 4)


@pytest.mark.parametrize("status", [500, 504, None])
def test_a_commit_without_an_answer_is_made_once(rest, tmp_path, status):
    """Whether it was made is in the table: who opens it again goes on from there."""
    sink = target(rest, tmp_path, rows="plain")
    sink.open(1)
    rest.answers, before = [status], rest.commits
    with pytest.raises(Unavailable):
        sink.deliver([batch(3, (1, "a"))])
    assert rest.commits == before + (status is not None)
    again = target(rest, tmp_path, rows="plain")
    offset = again.open(1)
    assert offset == (None if status is None else SinkOffset(1, 3))
    if offset is None:
        again.deliver([batch(3, (1, "a"))])
    assert content(tmp_path) == [(1, "a")]


def test_a_token_that_is_not_known(rest, tmp_path):
    with pytest.raises(Error, match="refuses the user") as refused:
        target(rest, tmp_path, **{"catalog.token": "guessed"}).look()
    assert refused.value.condition == "CONNECTOR_OPTION"
    assert "this token is not known" in str(refused.value)


def test_a_view_is_delivered_while_answers_get_lost(rest, tmp_path):
    listed = ", ".join(f"{n} = '{v}'" for n, v in tables.options(tmp_path, **through(rest)).items())
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(f"""
            CREATE TABLE t (id int, name varchar) APPEND ONLY;
            CREATE SINK k FROM t WITH ({listed}, type = 'append-only');
            INSERT INTO t VALUES (1, 'a'), (2, 'b');
            FLUSH
        """)
        wait(connection, is_done)
        rest.answers = [504, None, 500]
        connection.execute("INSERT INTO t VALUES (3, 'c'), (1, 'a'); FLUSH")
        wait(connection, lambda shown: is_done(shown) and len(content(tmp_path)) == 4)
        (shown,) = connection.execute("SHOW CREATE SINK k").fetchall()
    assert not rest.answers
    assert content(tmp_path) == [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
    assert rest.token not in str(shown)
