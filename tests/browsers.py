"""Fixtures with a real browser (`scripts.browser`).

Where there is none, the tests that need it are skipped, and the run says at its end how many (`servers`).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import browser as browsers
from scripts.browser import Browser
from scripts.servers.archives import ServerUnavailableError, cache_folder, locked
from selenium.webdriver import Chrome

from tests.servers import UNAVAILABLE

_AXE = "axe-core"
_AXE_VERSION = "4.12.1"
_FETCH_S = 60


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chrome]:
    """One Chromium for each process of pytest."""
    try:
        with browsers.chromium() as made:
            yield made
    except ServerUnavailableError as cause:
        pytest.skip(f"Chromium {UNAVAILABLE}{cause}")


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Browser]:
    """A page that knows nothing of other tests: of an address that is new, so storage and cookies are, too."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield Browser(chromium)
    chromium.get("about:blank")


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, a script that finds what keeps people out of a page. npm fetches it once (3 MB)."""
    folder = cache_folder() / f"{_AXE}-{_AXE_VERSION}"
    script = folder / "node_modules" / _AXE / "axe.min.js"
    try:
        _fetch(folder, script)
    except ServerUnavailableError as cause:
        pytest.skip(f"axe-core {UNAVAILABLE}{cause}")
    return script.read_text(encoding="utf-8")


def _fetch(folder: Path, script: Path) -> None:
    npm = shutil.which("npm")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if script.exists():
            return
        if npm is None:
            raise ServerUnavailableError("no npm on this machine")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
            command = [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--silent",
                "--ignore-scripts",
                f"{_AXE}@{_AXE_VERSION}",
            ]
            try:
                done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=_FETCH_S)
            except subprocess.TimeoutExpired:
                raise ServerUnavailableError("npm takes too long") from None
            if done.returncode != 0:
                raise ServerUnavailableError(f"npm can't fetch it: {done.stderr.strip()[-200:]}")
            shutil.rmtree(folder, ignore_errors=True)
            Path(work).rename(folder)
            Path(work).mkdir()  # for what removes it
