from __future__ import annotations

import pytest

import watersmeet


@pytest.fixture
def connection():
    with watersmeet.connect(runtime="inprocess") as made:
        yield made


@pytest.fixture
def run(connection):
    """Runs statements on a new cursor and gives the rows of the last one, None if it has none."""

    def run(sql, *values):
        cursor = connection.cursor().execute(sql, values)
        return None if cursor.description is None else cursor.fetchall()

    return run


@pytest.fixture
def fails(connection):
    """Runs a statement that must be refused and gives the error."""

    def fails(sql, *values):
        with pytest.raises(watersmeet.Error) as found:
            connection.cursor().execute(sql, values)
        return found.value

    return fails


@pytest.fixture
def opened(broker, tmp_path):
    """Opens one database, again and again."""
    connections = []

    def connect(**options):
        for before in connections:
            before.close()
        where = options.pop("kafka", {"bootstrap.servers": broker.bootstrap})
        connections.append(
            watersmeet.connect(tmp_path / "db", dialect="lenses", runtime="inprocess", kafka=where, **options)
        )
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()
