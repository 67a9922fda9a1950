"""Signals while a statement runs."""

from __future__ import annotations

import signal

from watersmeet.cli.interrupts import Interrupts


def test_a_signal_that_was_ignored_stays_ignored():
    """As in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.event.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_first_signal_sets_the_event_once_armed():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Interrupts() as interrupts:
            interrupts.armed = True
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.event.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
