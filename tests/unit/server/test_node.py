"""Knex and Sequelize: migrations, seeds, models and queries give from the server what they give from PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.packages import fetch_modules
from tests.clients import check_result

PINS = Path(__file__).parents[3] / "requirements/node"
PROGRAMS = Path(__file__).with_name("node")
#: A pool reads by one connection what another one has written.
OPTIONS = "-c dialect=postgres"


@pytest.fixture(scope="module")
def modules() -> Path:
    lock = (PINS / "package-lock.json").read_bytes()
    try:
        return fetch_modules(f"node-clients-{hashlib.sha256(lock).hexdigest()[:12]}", PINS, size_mb=45)
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))


def answers(program: str, modules: Path, database: dict[str, object]) -> dict[str, Any]:
    """What a program answers to its questions."""
    environment = {**os.environ, "NODE_PATH": str(modules), "DATABASE": json.dumps(database), "TZ": "UTC"}
    command = ["node", str(PROGRAMS / program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def compared(program: str, modules: Path, served, postgres, refused: dict[str, str]) -> dict[str, Any]:
    """How many questions have PostgreSQL's answer. refused: the reason, by question, of others."""
    here = {"host": "127.0.0.1", "port": served.server.port, "user": "ann", "database": "shop", "options": OPTIONS}
    found = answers(program, modules, here)
    with postgres.connect() as connection:
        info = connection.info
        there = {"host": info.host, "port": info.port, "user": info.user, "database": info.dbname}
        wanted = answers(program, modules, {**there, "password": info.password})
    assert not [(name, answer) for name, answer in wanted.items() if isinstance(answer, str)]  # an error
    differing = [name for name in wanted if found[name] != wanted[name]]
    others = [name for name in differing if name not in refused]
    assert {name: found[name] for name in others} == {name: wanted[name] for name in others}
    return {
        "passed": len(wanted) - len(differing),
        "of": len(wanted),
        "refused": {refused[name]: 1 for name in sorted(differing)},
    }


def version(name: str) -> str:
    return json.loads((PINS / "package.json").read_text())["dependencies"][name]


@pytest.mark.slow
@pytest.mark.long
def test_knex(modules, serving, postgres):
    counts = compared("knex.js", modules, serving(), postgres, {})
    ran = "migrations with each of its column types and changes of tables, up, down and up again; seeds; queries"
    check_result("knex", version=version("knex"), ran=ran, **counts)


@pytest.mark.slow
@pytest.mark.long
def test_sequelize(modules, serving, postgres):
    refused = {"find_or_create": "findOrCreate makes a function in PL/pgSQL; findCreateFind does not"}
    counts = compared("sequelize.js", modules, serving(), postgres, refused)
    ran = "models with associations, sync, migrations by Umzug up, down and up again; queries, transactions, conflicts"
    check_result("Sequelize", version=version("sequelize"), ran=ran, **counts)
