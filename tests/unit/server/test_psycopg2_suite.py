"""The tests of psycopg2, which its source contains, against the server and against PostgreSQL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.packages import fetch_source
from tests.clients import REQUIREMENTS, check_result, outcomes_of, packages, reason_of

#: The failures that are known, by reason: patterns of `class::test`. Others fail the test.
KNOWN = {
    "large objects": ("LargeObject*::*",),
    "composite types": ("AdaptTypeTestCase::*",),
    "ranges": ("RangeCasterTestCase::*",),
    "notices of DDL at level debug": ("ConnectionTests::test_notices_*",),
    "client encodings other than UTF-8": (
        "ConnectionTests::test_encoding_name",
        "CopyTests::test_copy_bytes",
        "CopyTests::test_copy_text",
        "CopyTests::test_copy_expert_textiobase",
        "QuotingTestCase::test_koi8",
        "QuotingTestCase::test_latin1",
        "NotifiesTests::test_notifies_received_on_set_client_encoding",
    ),
    "DO and functions in PL/pgSQL": (
        "GreenTestCase::test_non_block_after_notice",
        "AsyncTests::test_non_block_after_notification",
        "CursorTests::test_callproc_dict",
        "*Tests::test_async_callproc",
    ),
    "default_transaction_read_only and deferrable transactions": (
        "ConnectionTests::test_reset",
        "TransactionControlTests::*",
        "AutocommitTests::test_set_session_autocommit",
        "NotifiesTests::test_notifies_received_on_set_session",
    ),
    "nothing waits for locks: no deadlock": ("DeadlockSerializationTests::test_deadlock",),
    "a transaction that is serializable does not wait": ("IsolationLevelsTestCase::test_isolation_level_serializable",),
    "NO SCROLL is SCROLL, and rows of cursors that are not fetched": (
        "NamedCursorTests::test_not_scrollable",
        "*::testDictCursor*NotGreedy",
        "NamedTupleCursorTest::test_not_greedy",
        "WithCursorTestCase::test_exception_swallow",
    ),
    "timetz, 24:00 and IntervalStyle": (
        "DatetimeTests::test_interval_iso_8601_not_supported",
        "DatetimeTests::test_micros_rounding",
        "DatetimeTests::test_time_24",
        "DatetimeTests::test_type_roundtrip_timetz",
    ),
    "NaN of numeric, nested arrays": ("TypesBasicTests::testDecimal", "TypesBasicTests::testNested*"),
    "oids of inet, cidr, macaddr and their arrays": (
        "NetworkingTestCase::*",
        "TypesBasicTests::testNetworkArray",
        "TypesExtrasTests::testINET*",
    ),
    "oids of types of other names": ("JsonTestCase::test_no_array_oid",),
    "standard_conforming_strings off": ("JsonTestCase::test_scs",),
    "statements of more than 1 MB": ("*Test*::test_flush_on_write",),
}


def outcomes(folder: Path, modules: Path, report: Path, variables: dict[str, str]) -> dict[str, str]:
    """What became of each test. variables: where the server is."""
    chosen = "not test_suite and not test_pgconn_ptr"
    return outcomes_of(["tests", "-k", chosen], folder, report, {**variables, "PYTHONPATH": str(modules)})


@pytest.mark.slow
@pytest.mark.long
def test_the_suite(serving, postgres, tmp_path):
    modules, version = packages("psycopg2-binary", 8)
    pin = (REQUIREMENTS / "psycopg2-binary.txt").read_text()
    try:
        folder = fetch_source(f"psycopg2-binary-{version}", pin, 1)
    except ServerUnavailableError as cause:
        pytest.skip(str(cause))
    at = "PSYCOPG2_TESTDB"
    with postgres.connect() as connection:
        info = connection.info
        there = {at: info.dbname, f"{at}_HOST": info.host, f"{at}_PORT": str(info.port), f"{at}_USER": info.user}
        wanted = outcomes(folder, modules, tmp_path / "there.xml", {**there, "PGPASSWORD": info.password})
    port = str(serving().server.port)
    here = {at: "shop", f"{at}_HOST": "127.0.0.1", f"{at}_PORT": port, f"{at}_USER": "ann"}
    found = outcomes(folder, modules, tmp_path / "here.xml", {**here, "PGOPTIONS": "-c primary_key_conflict=error"})
    base = {name for name, what in wanted.items() if what == "passed"}
    failed = {name for name, what in found.items() if what == "failed" and name in base}
    assert {name for name in failed if reason_of(name, KNOWN) is None} == set()
    check_result(
        "psycopg2's own tests",
        at_least=True,
        version=version,
        ran="the tests of its source that pass on PostgreSQL",
        passed=sum(found.get(name) == "passed" for name in base),
        of=len(base),
        refused=dict(sorted(Counter(reason_of(name, KNOWN) for name in failed).items())),
    )
