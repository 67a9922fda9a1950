"""What of a watermark is left above each operator (RA-11)."""

from __future__ import annotations

import pytest

from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.watermarks import watermarks
from watersmeet.binder import bind_query
from watersmeet.catalog import Catalog, EventTime, Source, Table
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import read_script
from watersmeet.values.types import Field, SqlType
from watersmeet.values.watermarks import Term, both, by_months, floored, shifted

A, B = (Term("s1"),), (Term("s2"),)
MINUTE = 60_000_000


def relation(number, name, *, key=(), append_only=True):
    columns = (Field("k", SqlType("integer")), Field("ts", SqlType("timestamp")), Field("v", SqlType("integer")))
    return (Table if key else Source)(
        f"s{number}",
        name,
        columns,
        primary_key=key,
        append_only=append_only,
        event_time=EventTime("ts", 20_000_000),
    )


CATALOG = Catalog(
    1, 9, {r.id: r for r in (relation(1, "a"), relation(2, "b"), relation(3, "latest", key=("k",), append_only=False))}
)


def derived(query):
    text = f"CREATE MATERIALIZED VIEW v AS {query}"
    statement = read_script(text, language_named("risingwave"))[0]
    bound = bind_query(statement.query, CATALOG, text)
    found = watermarks(rewrite(bound.tree))
    return {c.name: found[c.id] for c in bound.tree.columns if c.id in found}


@pytest.mark.parametrize(("query", "expected"), [
    (("SELECT k, ts, ts + INTERVAL '1 minute' AS u, INTERVAL '2 min' + ts AS w, ts - INTERVAL '1 minute' AS x "
      "FROM a WHERE k > 1"),
     {"ts": A, "u": shifted(A, MINUTE), "w": shifted(A, 2 * MINUTE), "x": shifted(A, -MINUTE)}),
    ("SELECT ts + INTERVAL '1 month' AS u, ts - INTERVAL '2 years' AS w, ts + INTERVAL '1 month 1 day' AS x FROM a",
     {"u": by_months(A, "add_months", 1), "w": by_months(A, "add_months", -24)}),
    (("SELECT ts::timestamptz AS u, date_trunc('hour', ts) AS h, date_trunc('week', ts) AS w, CASE WHEN k > 0 "
      "THEN ts END AS c FROM a"),
     {"u": A, "h": floored(A, 60 * MINUTE), "w": floored(A, 7 * 1440 * MINUTE, 4 * 1440 * MINUTE)}),
    (("SELECT date_trunc('month', ts) AS m, date_trunc('quarter', ts) + INTERVAL '3 months' AS q, "
      "date_trunc('century', ts) AS c FROM a"),
     {"m": by_months(A, "floor_months", 1), "q": by_months(by_months(A, "floor_months", 3), "add_months", 3)}),
    ("SELECT ts, count(*) AS n, max(ts) AS m FROM a GROUP BY ts", {"ts": A}),
    ("SELECT k, max(ts) AS m FROM a GROUP BY k", {}),
    ("SELECT ts FROM a UNION ALL SELECT ts + INTERVAL '1 minute' FROM b", {"ts": both(A, shifted(B, MINUTE))}),
    ("SELECT ts FROM a UNION ALL SELECT ts FROM latest", {}),
    ("SELECT k, ts FROM latest", {}),
    ("SELECT k, ts, row_number() OVER (PARTITION BY ts ORDER BY k) AS n FROM a", {"ts": A}),
    ("SELECT k, ts, row_number() OVER (PARTITION BY k ORDER BY ts) AS n FROM a", {"ts": A}),
    ("SELECT k, ts, sum(v) OVER (PARTITION BY k ORDER BY ts, v) AS n, lag(v) OVER (ORDER BY ts) AS l FROM a",
      {"ts": A}),
    ("SELECT k, ts, row_number() OVER (PARTITION BY k ORDER BY v, ts) AS n FROM a", {}),
    ("SELECT k, ts, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS n FROM a", {}),
    ("SELECT k, ts, row_number() OVER (PARTITION BY k ORDER BY ts NULLS FIRST) AS n FROM a", {}),
    ("SELECT k, ts, lead(v) OVER (PARTITION BY k ORDER BY ts) AS n FROM a", {}),
    ("SELECT k, ts, lag(v, -1) OVER (PARTITION BY k ORDER BY ts) AS n FROM a", {}),
    ("SELECT k, ts, lead(v, -1) OVER (PARTITION BY k ORDER BY ts) AS n, lag(v, 0) OVER (ORDER BY ts) AS l FROM a",
      {"ts": A}),
    ("SELECT k, ts, sum(v) OVER (PARTITION BY k) AS n FROM a", {}),
    ("SELECT k, ts, sum(v) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS n FROM a", {}),
    ("SELECT a.k, a.ts FROM a JOIN b ON a.k = b.k", {}),
    ("SELECT * FROM TUMBLE(a, ts, INTERVAL '1 minute')",
     {"ts": A, "window_start": floored(A, MINUTE), "window_end": shifted(floored(A, MINUTE), MINUTE)}),
    ("SELECT window_start, window_end FROM TUMBLE(a, ts, INTERVAL '1 minute', INTERVAL '-10 s')",
     {"window_start": floored(A, MINUTE, MINUTE - 10_000_000),
      "window_end": shifted(floored(A, MINUTE, MINUTE - 10_000_000), MINUTE)}),
    ("SELECT * FROM HOP(a, ts, INTERVAL '1 minute', INTERVAL '3 minutes')",
     {"ts": A, "window_start": shifted(floored(A, MINUTE), -2 * MINUTE), "window_end": shifted(floored(A, MINUTE),
     MINUTE)}),
    ("SELECT window_end FROM HOP(a, ts, INTERVAL '1 minute', INTERVAL '1 minute', INTERVAL '20 s')",
     {"window_end": shifted(floored(A, MINUTE, 20_000_000), MINUTE)}),
    (("SELECT window_start, count(*) AS n, max(window_end) AS e FROM TUMBLE(a, ts, INTERVAL '1 minute') GROUP "
      "BY window_start"),
     {"window_start": floored(A, MINUTE)}),
    (("WITH m AS (SELECT k, window_start AS w FROM TUMBLE(a, ts, INTERVAL '1 minute')) SELECT * FROM TUMBLE(m, "
      "w, INTERVAL '1 hour')"),
     {"w": floored(A, MINUTE), "window_start": floored(floored(A, MINUTE), 60 * MINUTE),
      "window_end": shifted(floored(floored(A, MINUTE), 60 * MINUTE), 60 * MINUTE)}),
    ("SELECT unnest(ARRAY[ts, ts + INTERVAL '1 minute']) AS u FROM a", {}),
    ("SELECT generate_series(ts, ts + INTERVAL '1 minute', INTERVAL '10 s') AS u FROM a", {"u": A}),
    ("SELECT generate_series(ts, ts - INTERVAL '1 minute', INTERVAL '-10 s') AS u FROM a", {}),
    ("SELECT * FROM TUMBLE(latest, ts, INTERVAL '1 minute')", {}),
    ("SELECT a.ts FROM a LEFT JOIN (VALUES (1)) AS l(k) ON a.k = l.k", {"ts": A}),
    ("SELECT ts FROM a WHERE k IN (SELECT l.k FROM (VALUES (1), (2)) AS l(k))", {"ts": A}),
    ("SELECT ts FROM a WHERE NOT EXISTS (SELECT 1 FROM (VALUES (1)) AS l(k) WHERE l.k = a.k)", {"ts": A}),
    ("SELECT ts FROM a WHERE k IN (SELECT k FROM b)", {}),
    ("SELECT a.ts FROM a LEFT JOIN b ON a.k = b.k", {}),
    ("SELECT a.ts, l.v FROM a LEFT JOIN latest FOR SYSTEM_TIME AS OF PROCTIME() AS l ON a.k = l.k", {"ts": A}),
])  # fmt: skip
def test_what_is_left_of_a_watermark(query, expected):
    assert derived(query) == expected
