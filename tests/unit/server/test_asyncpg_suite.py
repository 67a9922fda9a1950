"""The tests of asyncpg, which its source contains, against the server and against PostgreSQL."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import asyncpg
import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.packages import fetch_source
from tests.clients import REQUIREMENTS, check_result, outcomes_of, packages, reason_of

#: The failures that are known, by reason: patterns of `class::test`. Others fail the test.
KNOWN = {
    "composite types": ("TestCacheInvalidation::*type_cache_invalidation*", "TestCodecs::test_*composite*"),
    "ranges": ("TestCodecs::test_*range*",),
    "DO and functions in PL/pgSQL": (
        "TestCodecs::test_enum_function_return",
        "TestExceptions::test_exceptions_str",
        "TestLogListeners::*",
        "TestPrepare::test_prepare_09_raise_error",
        "TestPrepare::test_prepare_31_pgbouncer_note",
    ),
    "timetz": ("TestCodecs::test_custom_codec_override_tuple", "TestCodecs::test_timetz_encoding"),
    "domains over domains": ("TestCodecs::test_domains",),
    "nested arrays, also with the type _int4": (
        "TestCodecs::test_arrays",
        "TestIntrospection::test_introspection_loads_basetypes_of_domains",
        "TestUtils::test_mogrify_*",
    ),
    "tid": ("TestCodecs::test_invalid_input",),
    "tables without columns, INHERITS, an empty select list": (
        "TestCodecs::test_relacl_array_type",
        "TestIntrospection::test_introspection_on_large_db",
        "TestPrepare::test_prepare_22_empty",
    ),
    "types of parameters: varchar for text, digits of numeric": (
        "TestCodecs::test_numeric",
        "TestCodecs::test_standard_codecs",
    ),
    "pg_sleep returns a text": ("TestCodecs::test_void", "TestPrepare::test_prepare_*_concurrent_calls"),
    "options and WHERE of COPY": (
        "TestCopy*::test_copy_*_table_basics",
        "TestCopyTo::test_copy_records_to_table_where",
    ),
    "CREATE TABLE AS and EXPLAIN of it, with parameters": (
        "TestExecuteScript::test_execute_script_3",
        "TestPrepare::test_prepare_14_explain",
    ),
    "division by zero is NULL": (
        "TestExecuteScript::test_execute_script_check_transactionality",
        "TestPrepare::test_prepare_21_errors",
        "TestPrepare::test_prepare_16_command_result",
    ),
    "a pipeline reports a duplicate key at its end": (
        "TestExecuteMany::test_executemany_server_failure_during_writes",
    ),
    "a connection of a pool ends while the driver waits": ("TestPool::test_pool_config_persistence",),
    "txid_current is 0, parameters of domains have the base type": (
        "TestPool::test_pool_release_in_xact",
        "TestIntrospection::test_introspection_retries_after_cache_bust",
    ),
    "ROLLBACK TO a savepoint before CREATE TABLE": ("TestTransaction::test_transaction_nested",),
}


def source() -> Path:
    """The folder with the source of the installed version."""
    lines = iter((REQUIREMENTS / "lock.txt").read_text().splitlines())
    pin = [next(line for line in lines if line.startswith("asyncpg=="))]
    while pin[-1].endswith("\\"):
        pin.append(next(lines))
    assert pin[0].split()[0] == f"asyncpg=={asyncpg.__version__}"
    return fetch_source(f"asyncpg-{asyncpg.__version__}", "\n".join(pin), 1)


def outcomes(tests: Path, report: Path, **variables: str) -> dict[str, str]:
    """What became of each test. tests: a copy, as its own folder has asyncpg without its compiled parts. variables:
    where the server is.
    """
    modules, _ = packages("distro", 1)  # which the tests import
    chosen = (
        "not test_flake8 and not test_mypy and not test_version and not timeout and not cancellation and not adversity"
    )
    return outcomes_of(
        ["tests", "--tb=native", "-k", chosen], tests.parent, report, {**variables, "PYTHONPATH": str(modules)}
    )


@pytest.mark.slow
@pytest.mark.long
def test_the_suite(serving, postgres, tmp_path):
    try:
        tests = shutil.copytree(source() / "tests", tmp_path / "tests")
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))
    with postgres.connect() as connection:
        info = connection.info
        there = {"PGDATABASE": info.dbname, "PGPORT": str(info.port), "PGUSER": info.user, "PGPASSWORD": info.password}
        wanted = outcomes(tests, tmp_path / "there.xml", PGHOST=info.host, **there)
    settings = "ALTER ROLE ann SET primary_key_conflict = 'error'"  # the driver reads no options of a connection
    served = serving(f"CREATE ROLE ann LOGIN PASSWORD 'secret'; GRANT admin TO ann; {settings}")
    here = {"PGDATABASE": "shop", "PGPORT": str(served.server.port), "PGUSER": "ann", "PGPASSWORD": "secret"}
    found = outcomes(tests, tmp_path / "here.xml", PGHOST="127.0.0.1", **here)
    base = {name for name, what in wanted.items() if what == "passed"}
    failed = {name for name, what in found.items() if what == "failed" and name in base}
    assert {name for name in failed if reason_of(name, KNOWN) is None} == set()
    check_result(
        "asyncpg's own tests",
        at_least=True,
        version=asyncpg.__version__,
        ran="the tests of its source that pass on PostgreSQL, without those of timeouts, which measure time",
        passed=sum(found.get(name) == "passed" for name in base),
        of=len(base),
        refused=dict(sorted(Counter(reason_of(name, KNOWN) for name in failed).items())),
    )
