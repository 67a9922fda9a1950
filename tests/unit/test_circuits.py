"""Circuits as text: the form that is stored, and what reading it again makes anew."""

from __future__ import annotations

import hashlib
import json

import watersmeet
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.runtime import limits
from watersmeet.values.serialization import from_json, to_json


def views(connection, first, last):
    for i in range(first, last):
        connection.execute(f"CREATE MATERIALIZED VIEW v{i} AS SELECT t.id, u.w + {i} AS w FROM t JOIN u ON t.k = u.k")


def connected():
    connection = watersmeet.connect(runtime="inprocess", parallelism=2)
    connection.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT)")
    connection.execute("CREATE TABLE u (k INT PRIMARY KEY, w INT)")
    return connection


def test_the_fingerprint_is_that_of_the_sorted_json():
    with connected() as connection:
        views(connection, 0, 2)
        circuit = connection._session.database.plans.circuit
        form = {
            "buckets": circuit.buckets,
            "operators": [to_json(o) for o in circuit.operators],
            "stages": circuit.stages,
        }
        assert json.loads(circuit.text) == form == to_json(circuit)
        text = json.dumps([STATE_FORMAT_VERSION, form], sort_keys=True, separators=(",", ":"))
        assert circuit.fingerprint == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_operators_that_are_in_use_are_not_made_again():
    with connected() as connection:
        views(connection, 0, 2)
        circuit = connection._session.database.plans.circuit
        read = from_json(Circuit, json.loads(circuit.text))
        assert read == circuit
        again = from_json(Circuit, json.loads(circuit.text))
        assert all(a is b for a, b in zip(again.operators, read.operators, strict=True))


def test_the_joins_of_views_are_looked_for_once(monkeypatch):
    """Not again for all views with each new one."""
    found = []
    between = limits._between
    monkeypatch.setattr(limits, "_between", lambda *given: found.append(given[1]) or between(*given))
    with connected() as connection:
        views(connection, 0, 8)
        # once while it is filled, and once as it is ready
        assert len(found) <= 2 * 8
        assert connection.execute("SELECT count(*) FROM v7").fetchall() == [(0,)]
