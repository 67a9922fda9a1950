"""What reads jobs and writes receipts is made before workers are forked."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.unit.runtime.test_planning import an_intent
from tests.unit.values.test_serialization import OPERATORS

from watersmeet.circuit.circuit import Circuit
from watersmeet.runtime.taskcontract import Job
from watersmeet.values.serialization import to_json

CODE = """
import json, sys
from unittest import mock

import benchmarks.nexmarkconnector  # before workers are forked, as WATERSMEET_CONNECTORS does
import watersmeet.connectors.datagen  # which, as all connectors, a worker imports when it first reads a source of them
import watersmeet.connectors.files.connectors
from watersmeet.system.blobs import BlobRef
from watersmeet.circuit.circuit import Circuit
from watersmeet.runtime.taskcontract import Receipt, SourceCounts
from watersmeet.runtime.tasks import Job, prepare
from watersmeet.values.serialization import from_json
from watersmeet.store.manifests import OperatorCounts, RelationChange

job, circuit = json.load(sys.stdin)
prepare()
with mock.patch("builtins.compile", side_effect=AssertionError("something is generated")):
    from_json(Job, job)
    print(from_json(Circuit, circuit).fingerprint)
    counts = SourceCounts(3, 5, first_dead={"line": 1})
    change = RelationChange((BlobRef("a.segment", 64, 10, 1),), 1, 0)
    Receipt(0, 1, "a.segment", {"t1": change}, {"o": OperatorCounts(1)}, {"s1": counts}, {"o": 7}, {"o": 8}).to_bytes()
"""


def test_nothing_is_generated_for_the_first_job():
    job = Job("/x", "id", True, an_intent(), {"0/1": "a.segment"}, {"t1": 3}, 1)
    circuit = Circuit(1, tuple(OPERATORS), {o.id: 0 for o in OPERATORS})
    values = json.dumps([to_json(job), to_json(circuit)])
    done = subprocess.run([sys.executable, "-c", CODE], input=values, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == circuit.fingerprint
