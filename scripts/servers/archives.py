"""What the servers run: jars from Maven repositories, fetched once into the user's cache.

They are fetched by Ivy, a jar of PySpark's, so that no Maven is needed. WATERSMEET_IVY_SETTINGS names a settings file
of Ivy's for machines that reach another repository than the public one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: How long fetching one server may take: a machine without a network may drop packets instead of refusing them.
FETCH_SECONDS = 300


class ServerUnavailableError(Exception):
    """What a server needs can't be had on this machine, as against a server that fails."""


@dataclass(frozen=True)
class Artifact:
    """One artifact of a Maven repository. classifier: of an archive other than the plain jar."""

    organisation: str
    name: str
    revision: str
    type: str = "jar"
    classifier: str = ""
    with_dependencies: bool = True


@dataclass(frozen=True)
class Bundle:
    """Artifacts that are used together. name: of its folder in the cache, so it names all versions in it."""

    name: str
    artifacts: tuple[Artifact, ...]
    size_mb: int


def cache_folder() -> Path:
    """Where bundles are kept: below XDG_CACHE_HOME, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "watersmeet" / "servers"


def java() -> str:
    """The Java that runs the servers: of JAVA_HOME, or on the PATH.

    Raises ServerUnavailableError where there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if found is None:
        raise ServerUnavailableError("no Java on this machine")
    return found


def fetch(bundle: Bundle, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the files of the bundle, which are fetched if they are not there yet.

    say: is told each file that is fetched. Raises ServerUnavailableError if they can't be fetched.
    """
    folder = cache_folder() / bundle.name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{bundle.name}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{bundle.name}-") as work:
                files = _fetch_into(Path(work), bundle, say)
                files.rename(folder)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock between processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def fetched_once(folder: Path, what: str, say: Callable[[str], None]) -> Iterator[Path | None]:
    """A folder to fetch into, whose content the caller moves to `folder`; None if that exists. Processes wait for each
    other.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if folder.exists():
            yield None
            return
        say(f"fetching {what}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
            yield Path(work)


def _fetch_into(work: Path, bundle: Bundle, say: Callable[[str], None]) -> Path:
    request = work / "request.xml"
    request.write_text(_request(bundle))
    files = work / "files"
    files.mkdir()
    settings = os.environ.get("WATERSMEET_IVY_SETTINGS")
    command = [java(), "-jar", str(_ivy()), *(["-settings", settings] if settings else [])]
    command += ["-cache", str(work / "ivy"), "-ivy", str(request), "-confs", "default"]
    command += ["-retrieve", f"{files}/[artifact]-[revision](-[classifier]).[ext]"]
    say(f"fetching {bundle.name} (some {bundle.size_mb} MB, once)")
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        ends = threading.Timer(FETCH_SECONDS, ivy.kill)
        ends.start()
        for line in ivy.stdout or ():
            output.append(line)
            if line.startswith("downloading "):
                say(line.split()[1].rsplit("/", 1)[-1])
        ends.cancel()
    if ivy.returncode != 0 or not any(files.iterdir()):
        last = "".join(output[-15:]).strip()
        raise ServerUnavailableError(f"Ivy could not fetch {bundle.name} within {FETCH_SECONDS} s:\n{last}")
    return files


def _request(bundle: Bundle) -> str:
    lines = []
    for artifact in bundle.artifacts:
        classifier = f' m:classifier="{artifact.classifier}"' if artifact.classifier else ""
        lines.append(
            f'<dependency org="{artifact.organisation}" name="{artifact.name}" rev="{artifact.revision}" '
            f'transitive="{str(artifact.with_dependencies).lower()}" conf="default->default">'
        )
        if artifact.type != "jar" or classifier:
            lines.append(f'<artifact name="{artifact.name}" type="{artifact.type}" ext="{artifact.type}"{classifier}/>')
        lines.append("</dependency>")
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="watersmeet" module="{bundle.name}"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _ivy() -> Path:
    spark = find_spec("pyspark")  # not imported: that takes a second
    folders = spark.submodule_search_locations if spark is not None else None
    jars = [jar for folder in folders or () for jar in Path(folder, "jars").glob("ivy-*.jar")]
    if not jars:
        raise ServerUnavailableError("this PySpark comes without Ivy")
    return jars[0]
