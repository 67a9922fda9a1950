"""Clients of Kafka, without a broker."""

from __future__ import annotations

import os
import subprocess
import sys

#: The answer comes in a thread of the client, when nobody but the search for garbage knows the client any more.
FORGETS = """
import gc, threading
from watersmeet.connectors.kafka.client import Brokers

gc.disable()
brokers = Brokers({"bootstrap.servers": "127.0.0.1:1"}, answer_s=0.2)
brokers.itself = brokers
answer = brokers.describe(["t"])["t"]
answered = threading.Event()

def collect(_):
    gc.collect()
    answered.set()

answer.add_done_callback(collect)
del brokers, answer
assert answered.wait(60)
Brokers({"bootstrap.servers": "127.0.0.1:1"}, answer_s=0.2)
print("alive")
"""


def test_a_client_that_was_forgotten_does_not_end_the_process():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FORGETS], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
