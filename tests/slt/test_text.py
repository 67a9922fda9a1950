"""Every text test: the project's own below this folder and the shared examples whose features exist."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest

import watersmeet
from watersmeet.testing.records import parse_file
from watersmeet.testing.runner import run_script

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "shared" / "examples"
NOT_DUE = [line.split()[0] for line in (HERE / "not_due.txt").read_text().splitlines() if line and line[0] != "#"]


def files() -> list[Path]:
    examples = [f for f in sorted(EXAMPLES.glob("*.slt")) if not any(fnmatch(f.name, p) for p in NOT_DUE)]
    return sorted(HERE.rglob("*.slt")) + examples


def run(path: Path, **options) -> None:
    outcome = run_script(parse_file(path), partial(watersmeet.connect, **options))
    assert outcome.failure is None, outcome.failure
    assert outcome.records > 0


@pytest.mark.parametrize("path", files(), ids=lambda p: p.name)
@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_in_process(path: Path, parallelism: int) -> None:
    run(path, runtime="inprocess", parallelism=parallelism)


def test_every_entry_of_not_due_names_a_file() -> None:
    if not EXAMPLES.exists():
        pytest.skip("no shared examples beside this checkout")
    names = [f.name for f in EXAMPLES.glob("*.slt")]
    assert [p for p in NOT_DUE if not any(fnmatch(n, p) for n in names)] == []
