from __future__ import annotations

import pytest
from tests.unit.sinks.memory import Memory

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


@pytest.fixture
def memory():
    made = Memory()
    made.install()
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "db"


@pytest.fixture
def connect(path):
    """Opens the database, again and again; it is closed at the end."""
    opened = []

    def connect(**options):
        for before in opened:
            before.close()
        opened.append(watersmeet.connect(path, runtime="inprocess", parallelism=2, **options))
        return opened[-1]

    yield connect
    for made in opened:
        made.close()


@pytest.fixture
def settle():
    """Brings the views up to date, and waits until the sinks have delivered everything or were stopped."""

    def settle(connection):
        connection.flush()
        session = connection._session
        deliveries = session.database.service(SinkWriters)
        for relation in session.catalog.relations.values():
            assert deliveries.wait(relation.id, 60)

    return settle


@pytest.fixture
def shown():
    """SHOW SINKS as dicts by name."""

    def shown(connection):
        cursor = connection.execute("SHOW SINKS")
        names = [d[0] for d in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}

    return shown
