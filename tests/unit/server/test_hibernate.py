"""Hibernate: the entities of a shop, their schema and questions of all kinds give from the server what they give from
PostgreSQL.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripts.servers.archives import Artifact, Bundle, ServerUnavailableError, fetch, java
from tests.clients import check_result

VERSION = "7.4.15"
LIBRARIES = Bundle(
    f"hibernate-{VERSION}",
    (
        Artifact("org.hibernate.orm", "hibernate-core", f"{VERSION}.Final"),
        Artifact("org.postgresql", "postgresql", "42.7.14", with_dependencies=False),
        Artifact("com.fasterxml.jackson.core", "jackson-databind", "2.20.1"),
    ),
    size_mb=25,
)
PROGRAM = Path(__file__).with_name("hibernate")
#: A pool reads by one connection what another one has written.
OPTIONS = "-c%20dialect=postgres"
REFUSED = {
    "large_object": "@Lob makes a large object; @Column(length = 100_000) makes a text",
    "skipped_locks": "SKIP LOCKED: nothing waits for locks, and a conflict fails at COMMIT",
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> str:
    """The class path of the compiled program."""
    try:
        compiler = shutil.which(Path(java()).with_name("javac")) or shutil.which("javac")
        if compiler is None:
            pytest.skip("no javac on this machine")
        libraries = f"{fetch(LIBRARIES)}/*"
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))
    made = tmp_path_factory.mktemp("classes")
    command = [compiler, "-d", str(made), "-cp", libraries, *map(str, PROGRAM.glob("*.java"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return os.pathsep.join((str(made), libraries))


def answers(classes: str, url: str, user: str, password: str) -> dict[str, Any]:
    """What the program answers to its questions."""
    command = [java(), "-cp", classes, "Exercise", f"jdbc:postgresql://{url}", user, password]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.long
def test_schemas_entities_and_queries(classes, serving, postgres):
    found = answers(classes, f"127.0.0.1:{serving().server.port}/shop?options={OPTIONS}", "ann", "")
    with postgres.connect() as connection:
        info = connection.info
        wanted = answers(classes, f"{info.host}:{info.port}/{info.dbname}", info.user, info.password)
    assert not [(name, answer) for name, answer in wanted.items() if isinstance(answer, str)]  # an error
    differing = [name for name in wanted if found[name] != wanted[name]]
    others = [name for name in differing if name not in REFUSED]
    assert {name: found[name] for name in others} == {name: wanted[name] for name in others}
    check_result(
        "Hibernate",
        version=f"{VERSION}.Final",
        ran="hbm2ddl create, validate, update, drop; 14 entities with keys, types, associations and inheritance; HQL, "
        "criteria, batches, locks, transactions",
        passed=len(wanted) - len(differing),
        of=len(wanted),
        refused={REFUSED[name]: 1 for name in sorted(differing)},
    )
