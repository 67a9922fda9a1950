"""Starting the query that carries epochs, on a machine that is busy."""

from __future__ import annotations

import pytest

from watersmeet.runtime.spark import source


class Busy:
    """Fails so many times."""

    def __init__(self, failures, text="Python worker failed to connect back."):
        self.left = failures
        self.text = text
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls <= self.left:
            raise RuntimeError(self.text)
        return "started"


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (1, 2), (3, 4)])
def test_it_is_started_again_if_a_process_came_too_late(monkeypatch, failures, calls):
    busy = Busy(failures)
    monkeypatch.setattr(source, "_started", busy)
    assert source.start_query(None, None, 0, "notifier", print) == "started"
    assert busy.calls == calls


@pytest.mark.parametrize(("busy", "calls"), [(Busy(4), 4), (Busy(1, "no such class"), 1)])
def test_other_failures_and_too_many_are_raised(monkeypatch, busy, calls):
    monkeypatch.setattr(source, "_started", busy)
    with pytest.raises(RuntimeError):
        source.start_query(None, None, 0, "notifier", print)
    assert busy.calls == calls
