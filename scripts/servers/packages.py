"""Packages that pip and npm fetch once into the user's cache, each set into a folder of its own.

They are too large for everybody who develops, or ask for other versions than the tests do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.servers.archives import FETCH_SECONDS, ServerUnavailableError, cache_folder, fetched_once


def fetch_packages(
    name: str,
    pins: str,
    size_mb: int,
    say: Callable[[str], None] = lambda _: None,
    *,
    built: bool = False,
) -> Path:
    """The folder with packages, which are fetched if they are not there yet.

    name: of the folder, so it names the version. pins: lines of a requirements file, all packages with hashes.
    built: some come as source, and are built here.
    Raises ServerUnavailableError if they can't be fetched.
    """
    folder = cache_folder() / name
    with fetched_once(folder, f"{name} (some {size_mb} MB, once)", say) as work:
        if work is not None:
            wanted = work / "wanted.txt"
            wanted.write_text(pins)
            options = [] if built else ["--only-binary=:all:"]
            _pip(name, ["install", "--no-compile", "--target", f"{work}/found", "-r", str(wanted), *options])
            shutil.move(work / "found", folder)
    return folder


def fetch_source(name: str, pin: str, size_mb: int, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the source of a package, which is fetched if it is not there yet.

    name, pin: as of `fetch_packages`, of one package. Raises ServerUnavailableError if it can't be fetched.
    """
    folder = cache_folder() / f"{name}-source"
    with fetched_once(folder, f"the source of {name} (some {size_mb} MB, once)", say) as work:
        if work is not None:
            wanted = work / "wanted.txt"
            wanted.write_text(pin)
            _pip(name, ["download", "--no-binary=:all:", "--dest", f"{work}/found", "-r", str(wanted)])
            (archive,) = (work / "found").iterdir()
            shutil.unpack_archive(archive, work / "unpacked", filter="data")
            (made,) = (work / "unpacked").iterdir()
            shutil.move(made, folder)
    return folder


def _pip(name: str, arguments: Sequence[str]) -> None:
    """Runs pip, which takes only packages with known hashes. Raises ServerUnavailableError if it fails."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--require-hashes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as timeout:
        raise ServerUnavailableError(f"pip did not fetch {name} within {FETCH_SECONDS} s") from timeout
    if done.returncode != 0:
        raise ServerUnavailableError(f"pip could not fetch {name}:\n{done.stderr[-2000:].strip()}")


def fetch_modules(name: str, pins: Path, size_mb: int, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder `node_modules` with packages of npm, which are fetched if they are not there yet.

    name: of its folder. pins: a folder with package.json and package-lock.json. No scripts of the packages run.
    Raises ServerUnavailableError without Node.js, or if npm can't fetch them.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServerUnavailableError("no Node.js on this machine")
    folder = cache_folder() / name
    with fetched_once(folder, f"{name} (some {size_mb} MB, once)", say) as work:
        if work is not None:
            found = work / "found"
            shutil.copytree(pins, found)
            command = [npm, "ci", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
            try:
                done = subprocess.run(
                    command, cwd=found, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS
                )
            except subprocess.TimeoutExpired as timeout:
                raise ServerUnavailableError(f"npm did not fetch {name} within {FETCH_SECONDS} s") from timeout
            if done.returncode != 0:
                raise ServerUnavailableError(f"npm could not fetch {name}:\n{done.stderr[-2000:].strip()}")
            shutil.move(found, folder)
    return folder / "node_modules"
