"""Queries that may take long: Ctrl-C ends them, and the connection serves on."""

from __future__ import annotations

import signal
import threading

import duckdb
import pytest

from watersmeet.kernel.evaluation.duck import is_interrupt, rows_of


class Endless:
    """A connection whose query ends when it is interrupted, and asks for that itself: by the signal of Ctrl-C."""

    def __init__(self):
        self.told = threading.Event()

    def execute(self, sql):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert self.told.wait(60), sql
        raise duckdb.InterruptException("interrupted")

    def interrupt(self):
        self.told.set()


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread only"
)
def test_ctrl_c_interrupts_a_query():
    connection = Endless()
    with pytest.raises(KeyboardInterrupt):
        rows_of(connection, "SELECT 1")
    assert connection.told.is_set()


def test_rows_and_errors_come_from_the_other_thread():
    with duckdb.connect() as connection:
        assert rows_of(connection, "SELECT 1 AS a").to_pylist() == [{"a": 1}]
        with pytest.raises(duckdb.CatalogException):
            rows_of(connection, "SELECT * FROM nowhere")


def test_what_duckdb_makes_of_ctrl_c():
    def raised(cause):
        made = RuntimeError("Query interrupted")
        made.__cause__ = cause
        return made

    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(raised(KeyboardInterrupt()))
    assert not is_interrupt(raised(ValueError()))
    assert not is_interrupt(RuntimeError("x"))
