"""A soak of a few seconds without Spark, with a process that is killed in between: right in the end."""

from __future__ import annotations

import pytest
from tests.soak.driving import Plan, Soak


@pytest.mark.slow
def test_a_short_soak_is_right(tmp_path):
    plan = Plan(6.0, runtime="inprocess", sample_s=1.0, select_s=1.0, late_s=2.0, restart_s=3.0, window_s=2)
    said = []
    soak = Soak(tmp_path, plan, said.append)
    soak.run()
    assert soak.faults["process killed"] >= 1
    assert soak.faults["late file"] >= 1
    assert soak.steps > 0
    assert len(said) == len(soak.samples) > 0
    assert soak.samples[-1].life > 1
    assert soak.samples[-1].main_bytes > 0
