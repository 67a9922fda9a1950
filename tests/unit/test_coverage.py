"""Each statement, clause, option, setting, function and type of a vendor's documentation: `tests/coverage`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from scripts.dialectcoverage import Entry, Topic, topics

import watersmeet
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.testing import Values, mismatch

#: Words that most names have in common.
_COMMON = {"CREATE", "ALTER", "DROP", "SHOW", "SET", "WITH", "SETTINGS"}


#: Words of statements that a transaction can undo.
_UNDONE = ("CREATE", "ALTER", "DROP")
#: Words of objects and changes that a transaction does not contain.
_KEPT = ("SECRET", "ROLE", "USER", "FLUSH", "QUERY")


class Databases:
    """A database in process for each file, with its `given`; a new one after an entry that changed it.

    Changes of an entry of definitions are undone, which is quicker.
    """

    def __init__(self) -> None:
        self._open: tuple[Topic, Connection, int] | None = None

    def of(self, topic: Topic) -> Connection:
        """A connection to the database of a file."""
        if self._open is not None:
            known, connection, head = self._open
            if known is topic and connection.opened.log.head() == head and connection.autocommit:
                return connection
            self.close()
        connection = watersmeet.connect(dialect=topic.system, runtime="inprocess")
        connection.show_own_writes()
        connection._session.connectors = "checked"
        self._open = topic, connection, -1  # closed even if `given` fails
        connection.execute(topic.given)
        connection.flush()
        self._open = topic, connection, connection.opened.log.head()
        return connection

    @contextmanager
    def undoing(self, topic: Topic, entry: Entry) -> Iterator[Connection]:
        """A connection for an entry; definitions are undone at the end of the block."""
        connection = self.of(topic)
        with connection.settings_kept():
            words = entry.text.upper().replace(";", " ; ").split()
            undone = (
                entry.result is None
                and not {*words} & {*_KEPT}
                and all(word in _UNDONE for before, word in pairwise([";", *words]) if before == ";")
            )
            if undone:
                connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if undone:
                    connection.rollback()
                    self._open = topic, connection, connection.opened.log.head()

    def close(self) -> None:
        """Closes the open database."""
        if self._open is not None:
            self._open[1].close()
        self._open = None


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    found = Databases()
    yield found
    found.close()


ENTRIES = [
    pytest.param(topic, entry, id=f"{topic.system}-{topic.name}-{entry.name}")
    for topic in topics()
    for entry in topic.entries
]


@pytest.mark.parametrize(("topic", "entry"), ENTRIES)
def test_the_entry_is_right(databases: Databases, topic: Topic, entry: Entry) -> None:
    with databases.undoing(topic, entry) as connection:
        if entry.refused:
            with pytest.raises(Error) as caught:
                connection.execute(entry.text)
            check_refusal(entry, caught.value)
            return
        with connection.execute(entry.text) as cursor:
            notices = cursor.notices
            if entry.result is not None:
                rows: list[Values] = cursor.fetchall()
                kinds = [column[1] for column in cursor.description or ()]
                found = mismatch(expected(entry, rows), rows, kinds, ())
                assert found is None, found
    if entry.notice is None:
        assert not notices
    else:
        assert any(entry.notice in notice for notice in notices), notices


def expected(entry: Entry, rows: list[Values]) -> list[str]:
    """The lines of the expected result."""
    assert entry.result is not None
    if entry.expression:
        return [entry.result or "(empty)"]
    lines = entry.result.strip("\n").split("\n") if entry.result else []
    return [line.replace(" | ", "\t") for line in lines] if rows and len(rows[0]) > 1 else lines


def check_refusal(entry: Entry, err: Error) -> None:
    """The error has the condition, names the feature, has a place and says what to do."""
    assert err.condition == entry.refused != "SYNTAX_ERROR", err
    words = {*re.findall(r"\w\w+", entry.name.upper())}
    named = {*re.findall(r"\w\w+", err.message.upper())}
    assert named & (words - _COMMON or words), f"{err.message} does not name {entry.name}"
    assert err.hint, f"{err} has no hint"
    assert err.span is not None, f"{err} has no place"
