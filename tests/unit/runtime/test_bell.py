"""The bell that wakes the process of the streaming source."""

from __future__ import annotations

import threading

from watersmeet.runtime.spark.source import Bell, Listener

LONG_S = 60


def test_a_ring_ends_the_wait_and_is_not_lost_before_it():
    bell = Bell()
    listener = Listener(bell.path)
    bell.ring()
    bell.ring()
    listener.wait(LONG_S)
    waiting = threading.Thread(target=listener.wait, args=(LONG_S,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()  # both rings are heard by then
    bell.ring()
    waiting.join(LONG_S / 2)
    assert not waiting.is_alive()
    listener.close()
    bell.remove()


def test_it_rings_where_nobody_listens():
    bell = Bell()
    bell.ring()
    listener = Listener(bell.path)
    for _ in range(100_000):  # more than the pipe holds
        bell.ring()
    listener.wait(LONG_S)
    bell.remove()
    bell.ring()
    listener.close()
