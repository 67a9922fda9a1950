"""Results of the tests that run real clients against the server, as `docs/reference/clients.md` shows them."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.packages import fetch_packages

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
#: By client: its version, what ran, how much of it passed, and what is refused, with reasons.
RESULTS = Path(__file__).with_name("clients.json")


def check_result(client: str, *, at_least: bool = False, **found: Any) -> None:
    """Fails unless the committed result of a client is what a test has found. at_least: more may pass, less be refused,
    and the number of tests may depend on the version of PostgreSQL.
    """
    known = json.loads(RESULTS.read_text()).get(client, {})
    holds = known == found
    if at_least and known:
        more = {reason: n for reason, n in found["refused"].items() if n > known["refused"].get(reason, 0)}
        same = all(known[key] == found[key] for key in ("version", "ran"))
        holds = same and not more and found["passed"] >= known["passed"]
    if not holds:
        text = json.dumps({client: found}, ensure_ascii=False, indent=1)
        pytest.fail(f"{RESULTS.name} has another result. Commit this one, and run python -m scripts.reference:\n{text}")


def packages(name: str, size_mb: int) -> tuple[Path, str]:
    """The folder with the packages of `requirements/<name>.txt`, and the version of the package `name`."""
    pins = (REQUIREMENTS / f"{name}.txt").read_text()
    version = next(line for line in pins.splitlines() if line.startswith(f"{name}==")).split()[0].partition("==")[2]
    try:
        return fetch_packages(f"{name}-{version}", pins, size_mb), version
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))


def ran(folder: Path, *arguments: str, path: Path, environment: Mapping[str, str], may_fail: bool = False) -> str:
    """The output of Python with these arguments in a folder. path: a folder with packages to import."""
    variables = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, env=variables, cwd=folder)
    assert may_fail or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes_of(arguments: Sequence[str], folder: Path, report: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What became of each test, as `class::test`, of a run of pytest: passed, failed or skipped.

    report: the file that the run writes. environment: variables on top of those of this process.
    """
    faulthandler.cancel_dump_traceback_later()  # a suite may take longer than a test may
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(report), *arguments]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    variables.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2].partition('_postgresql+')[0]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found[name] = "failed"
        else:
            found.setdefault(name, "skipped" if "skipped" in kinds else "passed")
    return found


def reason_of(name: str, known: Mapping[str, Sequence[str]]) -> str | None:
    """Why a test is known to fail. known: by reason, patterns of `class::test`."""
    return next((r for r, patterns in known.items() if any(fnmatchcase(name, p) for p in patterns)), None)
