"""PostgreSQL's driver for Java against the server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.servers.archives import Artifact, Bundle, ServerUnavailableError, fetch, java
from tests.clients import check_result

VERSION = "42.7.14"
DRIVER = Bundle(
    f"pgjdbc-{VERSION}", (Artifact("org.postgresql", "postgresql", VERSION, with_dependencies=False),), size_mb=1
)
PROGRAM = Path(__file__).with_name("Jdbc.java")
UPDATING = Path(__file__).with_name("Updating.java")
OPTIONS = "-c%20dialect=postgres"
REFUSED = {
    "called_function": "CallableStatement: a function of one value in FROM",
    "described_parameters": "the type of a parameter for a column text[] is described as varchar[]",
}
SHOP = """
CREATE TABLE t (id int, k varchar, name varchar NOT NULL, x numeric(10, 2), a int[], at timestamptz,
                PRIMARY KEY (id, k));
CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS n FROM t GROUP BY name;
CREATE VIEW w AS SELECT id FROM t;
CREATE INDEX i ON t(name);
CREATE FUNCTION plus(a int, b int) RETURNS int LANGUAGE SQL AS 'SELECT a + b';
"""
WANTED = """
product PostgreSQL 15
schema information_schema
schema pg_catalog
schema public
table i INDEX
table t_pkey INDEX
table v MATERIALIZED VIEW
table t TABLE
table w VIEW
column id int4 10 0
column k varchar 2147483647 0
column name varchar 2147483647 0
column x numeric 10 1
column a _int4 10 1
column at timestamptz 35 1
key id 1 t_pkey
key k 2 t_pkey
index t_pkey id f
index t_pkey k f
index i name t
function plus
catalog shop
types true
batch 20
found 8 1.25
fetched 20
valid true isolation 2
failed 42703
cancelled 57014
"""


@pytest.fixture(scope="module")
def driver() -> Path:
    try:
        java()
        return next(fetch(DRIVER).glob("*.jar"))
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))


def test_metadata_and_statements(serving, driver):
    served = serving(SHOP)
    url = f"jdbc:postgresql://127.0.0.1:{served.server.port}/shop"
    command = [java(), "-cp", str(driver), str(PROGRAM), url]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n") == WANTED.lstrip().split("\n")


def answers(driver: Path, url: str, user: str, password: str) -> dict[str, str]:
    """What the program answers to its questions."""
    command = [java(), "-cp", str(driver), str(UPDATING), f"jdbc:postgresql://{url}", user, password]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.long
def test_updatable_results_batches_and_values(driver, serving, postgres):
    found = answers(driver, f"127.0.0.1:{serving().server.port}/shop?options={OPTIONS}", "ann", "")
    with postgres.connect() as connection:
        info = connection.info
        wanted = answers(driver, f"{info.host}:{info.port}/{info.dbname}", info.user, info.password)
    assert not [(name, answer) for name, answer in wanted.items() if answer.startswith("ERROR")]
    differing = [name for name in wanted if found[name] != wanted[name]]
    others = [name for name in differing if name not in REFUSED]
    assert {name: found[name] for name in others} == {name: wanted[name] for name in others}
    check_result(
        "pgjdbc",
        version=VERSION,
        ran="updatable results, batches, DatabaseMetaData, values of all types, keys, escapes, COPY, notifications",
        passed=len(wanted) - len(differing),
        of=len(wanted),
        refused={REFUSED[name]: 1 for name in sorted(differing)},
    )
