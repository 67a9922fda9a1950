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
