"""What clients and tools ask: each statement has just the answer that its file says.

A file of `statements` holds those of one client. In front of each stands its answer: how many rows and columns, a
command tag, or the SQLSTATE of an error; and the values of its parameters. No statement is answered by an empty result
unless it says so.
Numbers of relations in them (16392 is `t`) follow from the order of CREATE below.
"""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import ExecStatus
from tests.unit.server.test_catalog_answers import SHOP

FILLED = f"""{SHOP}
INSERT INTO t VALUES (1, 'a', 'one', 1.5, ARRAY[1], '2026-01-15 00:00:00Z');
FLUSH
"""
FILES = sorted(Path(__file__).with_name("statements").glob("*.sql"))


def read(path: Path) -> list[tuple[str, list[str], str]]:
    """The statements of a file: the answer, values, text."""
    found = []
    for part in path.read_text().split("\n#? ")[1:]:
        head, _, text = part.partition("\n")
        answer, bracket, values = head.partition(" [")
        found.append((answer, json.loads(bracket + values) if values else [], text.strip()))
    return found


def run(client: psycopg.Connection, text: str, values: list[str]) -> str:
    """What the server answers, as the files write it."""
    if values:
        done = client.pgconn.exec_params(text.encode(), [v.encode() for v in values])
    else:
        done = client.pgconn.exec_(text.encode())
    if done.status == ExecStatus.FATAL_ERROR:
        return f"error {done.error_field(psycopg.pq.DiagnosticField.SQLSTATE).decode()}"
    if done.status == ExecStatus.TUPLES_OK:
        return f"{done.ntuples} rows of {done.nfields}"
    return done.command_status.decode()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_answers(serving, path):
    with serving(FILLED).connect(autocommit=True) as client:
        asked = read(path)
        assert asked
        assert [(run(client, text, values), text) for _, values, text in asked] == [(a, text) for a, _, text in asked]
