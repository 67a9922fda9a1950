"""The notifier that wakes the process of the streaming source."""

from __future__ import annotations

import threading

from watersmeet.runtime.spark.source import Listener, Notifier

LONG_S = 60


def test_a_ring_ends_the_wait_and_is_not_lost_before_it():
    notifier = Notifier()
    listener = Listener(notifier.path)
    notifier.notify()
    notifier.notify()
    listener.wait(LONG_S)
    waiting = threading.Thread(target=listener.wait, args=(LONG_S,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()  # both rings are heard by then
    notifier.notify()
    waiting.join(LONG_S / 2)
    assert not waiting.is_alive()
    listener.close()
    notifier.remove()


def test_it_rings_where_nobody_listens():
    notifier = Notifier()
    notifier.notify()
    listener = Listener(notifier.path)
    for _ in range(100_000):  # more than the pipe holds
        notifier.notify()
    listener.wait(LONG_S)
    notifier.remove()
    notifier.notify()
    listener.close()
