"""Programs of servers from packages of Debian, which are fetched once into the user's cache and not installed.

So this needs no special rights, and starts no service. Only the libraries that the machine lacks are fetched as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from scripts.servers.archives import FETCH_SECONDS, ServerUnavailableError, cache_folder, fetched_once

_NAMED = re.compile(r"^'\S+' ([^_\s]+)_\S+\.deb ", re.MULTILINE)


def debian_program(
    package: str, program: str, say: Callable[[str], None] = lambda _: None
) -> tuple[str, dict[str, str]]:
    """The path of a server's program, and the environment in which it finds its libraries. package: the package of
    Debian that has it.

    Raises ServerUnavailableError where it can't be had.
    """
    installed = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if installed is not None:
        return installed, {}
    folder = _fetched(package, say)
    found = [p for place in ("usr/bin", "usr/sbin") if (p := folder / place / program).exists()]
    if not found:
        raise ServerUnavailableError(f"Debian's package {package} has no program {program}")
    libraries = sorted({str(p.parent) for p in folder.rglob("*.so*")})
    return str(found[0]), {"LD_LIBRARY_PATH": ":".join(libraries)}


def _fetched(package: str, say: Callable[[str], None]) -> Path:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServerUnavailableError(f"{package} is not installed, and this is not Debian")
    folder = cache_folder() / f"debian-{package}"
    with fetched_once(folder, f"Debian's package {package} (once)", say) as work:
        if work is not None:
            wanted = ["apt-get", "-o", "Debug::NoLocking=1", "--print-uris", "-y", "--no-install-recommends"]
            listed = _NAMED.findall(_run([*wanted, "install", package], work))
            if not listed:
                raise ServerUnavailableError(f"apt-get knows no package {package}")
            _run(["apt-get", "download", *listed], work)
            for archive in work.glob("*.deb"):
                _run(["dpkg-deb", "-x", str(archive), f"{work}/found"], work)
            shutil.move(work / "found", folder)
    return folder


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as timeout:
        raise ServerUnavailableError(f"{command[0]} did not end within {FETCH_SECONDS} s") from timeout
    if done.returncode != 0:
        raise ServerUnavailableError(f"{' '.join(command[:2])} failed:\n{done.stderr[-1000:].strip()}")
    return done.stdout
