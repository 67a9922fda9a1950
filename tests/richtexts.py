"""Runs text tests of the rich form (`dialect NAME` first): rows by `insert`, continuous results by `expect`.

Every statement outside a transaction is followed by FLUSH, so that a record begins when all before it is visible.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import watersmeet
from tests.conditions import fulfils
from tests.harness import Harness, connect_without_connectors
from tests.plans import broken, contains_in_order
from watersmeet.database.sessions.result import python_rows
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.tree.sqltypes import type_named
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.session.statements.running import RunningQuery
from watersmeet.testing import (
    Failure,
    Outcome,
    Record,
    Row,
    Script,
    difference,
    flush,
    read,
    refusal,
    run_records,
    run_script,
    succeeds,
    written,
)


@dataclass(slots=True)
class _Started:
    """A query that runs, with all that it gave, rows and how often each came or went; the first `before` were there at
    the previous `expect`.
    """

    query: RunningQuery
    all: list[tuple[tuple[Any, ...], int]] = field(default_factory=list)
    before: int = 0

    def take(self) -> None:
        """Asks what came."""
        rows, diff = self.query.take()
        self.before = len(self.all)
        self.all += zip(python_rows(rows, tuple(c.type for c in self.query.columns)), diff.tolist(), strict=True)


@dataclass(slots=True)
class _Run:
    """early: by line, the `query` records of queries that run, which began before the first rows; None before that."""

    script: Script
    connection: Connection
    seen: dict[str, Counter[Row]] = field(default_factory=dict)
    """By view, its content at the previous `expect`."""
    started: dict[str, _Started] = field(default_factory=dict)
    early: dict[int, _Started] | None = None
    commits: dict[str, int] = field(default_factory=dict)
    """The numbers of commits by the names that `commit` gave them."""

    @property
    def continuous(self) -> bool:
        """Whether every SELECT of a stream runs until it is stopped, in the dialect that is spoken now."""
        return language_named(self.connection.dialect).semantics.continuous == "streams"

    @property
    def records(self) -> bool:
        """Whether relations are topics of records, in the dialect that is spoken now."""
        return language_named(self.connection.dialect).semantics.changes_topics == "records"

    def content_sql(self, label: str) -> str:
        """The query for the content of a relation."""
        name = ".".join(f'"{part}"' for part in label.split("."))
        return f"SELECT * FROM table({name})" if self.continuous else f"SELECT * FROM {name}"


def run_text(script: Script, **options: Any) -> Outcome:
    """Runs a script of either form in a fresh database, the rich form without connectors: `insert` takes their place.

    options: of `connect`. Stops at the first failure.
    """
    if not script.rich:
        return run_script(script, lambda: watersmeet.connect(**options))
    first, *records = script.records
    with connect_without_connectors(dialect=first.argument_text, **options) as connection:
        run = _Run(script, connection)
        _set_before(connection, records)
        return run_records(script.path, records, {name: partial(_handled, run, do) for name, do in _HANDLERS.items()})


def _handled(run: _Run, do: Callable[[_Run, Record], None], record: Record) -> None:
    if record.directive in ("insert", "watermark", "at") and run.early is None:
        run.early = _begun(run)
    do(run, _with_commits(run, record))


def _with_commits(run: _Run, record: Record) -> Record:
    """The record with the number of each commit that its SQL names: `$name`."""
    numbers = run.commits
    return replace(record, sql=re.sub(r"\$(\w+)", lambda m: str(numbers.get(m[1], m[0])), record.sql))


def _begun(run: _Run) -> dict[int, _Started]:
    """The queries that run of all `query` records, started."""
    if language_named(run.connection.dialect).semantics.continuous != "marked":
        return {}
    records = [
        r
        for r in run.script.records
        if r.directive == "query" and re.match(r"\s*SELECT\s+STREAM\b", r.sql, re.IGNORECASE)
    ]
    return {r.line: _Started(run.connection.start(r.sql)) for r in records}


def _statement(run: _Run, record: Record) -> None:
    if not succeeds(run.connection, record):
        _expect_error(run, record)


def _expect_error(run: _Run, record: Record) -> None:
    wanted = " ".join(record.arguments[1:])
    err = refusal(run.connection, record)
    if not fulfils(wanted, err.condition):
        raise Failure(f"refused with {err.condition}, not with {wanted!r}:\n{err}") from err


def _external(run: _Run, record: Record) -> None:
    """`external KIND DB.TABLE (col type, …)`: the whole content of a table of another system."""
    m = re.fullmatch(r"(\S+) (\S+) \((.+)\)", record.argument_text)
    if m is None:
        raise Failure("external is written: external KIND DB.TABLE (column type, …)")
    Harness(run.connection).set_external(m[1], m[2], m[3], [_values(line) for line in record.body])
    flush(run.connection)


def _values(line: str) -> list[str | None]:
    """The values of a row that is delivered."""
    return [None if v == "NULL" else ("" if v == "''" else v) for v in _cells(line)]


def _insert(run: _Run, record: Record) -> None:
    name, columns = record.arguments[0], None
    if m := re.fullmatch(r"(\S+)\s*\((.+)\)", record.argument_text):
        name, columns = m[1], [c.strip() for c in m[2].split(",")]
    rows = [_values(line) for line in record.body]
    Harness(run.connection).deliver(name, rows, columns)
    flush(run.connection)


def _start(run: _Run, record: Record) -> None:
    run.started[record.arguments[0]] = _Started(run.connection.start(record.sql))
    flush(run.connection)


def _stop(run: _Run, record: Record) -> None:
    run.started.pop(record.arguments[0]).query.close()


def _failed(run: _Run, record: Record) -> None:
    """A query that runs, or a view, must have been stopped with the condition."""
    label, wanted = record.arguments[0], " ".join(record.arguments[1:])
    try:
        if label in run.started:
            run.started[label].take()  # what it gave before
            run.started[label].take()
        else:
            run.connection.execute(run.content_sql(label))
    except Error as err:
        if not fulfils(wanted, err.condition):
            raise Failure(f"stopped with {err.condition}, not with {wanted!r}:\n{err}") from err
        return
    raise Failure(f"{label} goes on, but must have been stopped")


def _at(run: _Run, record: Record) -> None:
    Harness(run.connection).set_clock(_micros(record.argument_text))
    flush(run.connection)


def _commit(run: _Run, record: Record) -> None:
    """`commit NAME`: gives the newest commit a name."""
    ((number, *_),) = run.connection.execute("SHOW COMMITS LIMIT 1").fetchall()
    run.commits[record.arguments[0]] = number


def _watermark(run: _Run, record: Record) -> None:
    name, *moment = record.arguments
    Harness(run.connection).set_watermark(name, _micros(" ".join(moment)))
    flush(run.connection)


def _set_before(connection: Connection, records: Sequence[Record]) -> None:
    """The clock is free before the first `at`, but it never goes back: not even from now to the time of a test."""
    first = next((r for r in records if r.directive == "at"), None)
    if first is not None:
        with contextlib.suppress(Failure):  # the record says so when it is run
            Harness(connection).set_clock(_micros(first.argument_text))


def _micros(text: str) -> int:
    """A timestamp without zone in microseconds."""
    try:
        moment = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    except ValueError:
        raise Failure(f"not a timestamp: {text!r}") from None
    return (moment - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)


def _query(run: _Run, record: Record) -> None:
    if record.arguments[:1] == ("error",):
        _expect_error(run, record)
        return
    if record.line in (run.early or {}):
        _expect_started((run.early or {})[record.line], record, record.arguments)
        return
    cursor = run.connection.cursor()
    cursor.execute(record.sql)
    names = [d[0] for d in cursor.description or ()]
    rows = cursor.fetchall()
    if record.expected is None:
        return
    mode = record.argument_text or "ordered"
    if mode not in ("ordered", "rowsort"):
        raise Failure(f"the mode {mode!r} needs a feature that does not exist yet")
    names, rows = _chosen(names, rows, record.columns)
    _compare(record.expected, rows, ordered=mode == "ordered")


def _compare(expected: Sequence[str], rows: Sequence[tuple[Any, ...]], *, ordered: bool) -> None:
    examples = list(zip(*rows, strict=True)) or []
    wanted: list[Row] = []
    for line in expected:
        cells = _cells(line)
        if rows and len(cells) != len(examples):
            raise Failure(f"{len(cells)} values are written, the result has {len(examples)} columns: {line}")
        wanted.append(tuple(read(c, examples[i] if rows else ()) for i, c in enumerate(cells)))
    real = [tuple(written(v) for v in row) for row in rows]
    if (text := difference(wanted, real)) is not None:
        raise Failure("the rows differ\n" + text)
    if ordered and wanted != real:
        raise Failure("the rows are right, their order is not:\n" + "\n".join(" | ".join(r) for r in real))


def _check_rising(rows: Sequence[tuple[Any, ...]]) -> None:
    """The first column never falls, also not from one block of rows to the next."""
    if any(later[0] < row[0] for row, later in itertools.pairwise(rows)):
        raise Failure(
            "the rows do not come in the order of their first column:\n"
            + "\n".join(" | ".join(map(written, r)) for r in rows)
        )


def _expect(run: _Run, record: Record) -> None:
    """The result of a view is its content; its changes are the difference to the previous `expect`."""
    label, modes = record.arguments[0], record.arguments[1:]
    if label in run.started:
        started = run.started[label]
        if "net" not in modes and "changelog" not in modes:
            _expect_started(started, record, modes)
            return
        started.take()
        names = [c.name for c in started.query.columns]
        rows = _added_up(started.all)
        run.seen[label] = _counted(_added_up(started.all[: started.before]))
    elif run.records and "net" in modes:
        newest = _Started(run.connection.start(f"SELECT TABLE * FROM `{label}`"))
        newest.take()
        names, rows = [c.name for c in newest.query.columns], _added_up(newest.all)
        newest.query.close()
    else:
        cursor = run.connection.cursor()
        cursor.execute(run.content_sql(label))
        names = [d[0] for d in cursor.description or ()]
        rows = cursor.fetchall()
    before = run.seen.get(label, Counter())
    now = _counted(rows)
    run.seen[label] = now
    if "changelog" in modes:
        _compare_changes(record, names, rows, before, now)
        return
    if unknown := set(modes) - {"rowsort", "net"}:
        raise Failure(f"the modes {sorted(unknown)} need a feature that does not exist yet")
    _, rows = _chosen(names, rows, record.columns)
    _compare(record.expected or (), rows, ordered=not modes)


def _expect_started(started: _Started, record: Record, modes: Sequence[str]) -> None:
    """What a query that runs gave, in all or since the previous time; `timesort`: its first column never goes down."""
    started.take()
    part = started.all[started.before :] if "since" in modes else started.all
    _, shown = _chosen(
        [c.name for c in started.query.columns], [r for r, times in part for _ in range(times)], record.columns
    )
    _compare(record.expected or (), shown, ordered=not {"rowsort", "timesort"} & set(modes))
    if "timesort" in modes:
        _check_rising(_chosen([c.name for c in started.query.columns], [r for r, _ in started.all], record.columns)[1])


def _counted(rows: Sequence[tuple[Any, ...]]) -> Counter[Row]:
    return Counter(tuple(written(v) for v in row) for row in rows)


def _added_up(changes: Sequence[tuple[tuple[Any, ...], int]]) -> list[tuple[Any, ...]]:
    """The content that changes lead to."""
    content: Counter[Row] = Counter()
    examples: dict[Row, tuple[Any, ...]] = {}
    for row, times in changes:
        text = tuple(map(written, row))
        examples[text] = row
        content[text] += times
    if any(times < 0 for times in content.values()):
        raise Failure("a row was taken back that was not there")
    return [examples[text] for text in content.elements()]


def _compare_changes(
    record: Record, names: list[str], rows: Sequence[tuple[Any, ...]], before: Counter[Row], now: Counter[Row]
) -> None:
    _, ((*positions,),) = _chosen(names, [tuple(range(len(names)))], record.columns)
    examples = list(zip(*rows, strict=True)) or [() for _ in names]
    real = [("+", *(row[i] for i in positions)) for row in (now - before).elements()]
    real += [("-", *(row[i] for i in positions)) for row in (before - now).elements()]
    wanted: list[Row] = []
    for line in record.expected or ():
        sign, *cells = _cells(line)
        if len(cells) != len(positions):
            raise Failure(
                f"{len(cells)} values are written behind the sign, the result has {len(positions)} columns: {line}"
            )
        wanted.append((sign, *(read(c, examples[positions[i]]) for i, c in enumerate(cells))))
    if (text := difference(wanted, real)) is not None and (
        text := difference([tuple(map(_loose, r)) for r in wanted], [tuple(map(_loose, r)) for r in real])
    ) is not None:
        raise Failure("the changes differ\n" + text)


def _loose(text: str) -> str:
    """With no example of a column left, `1.0` and `1` can't be told apart by type: compare the number."""
    return text.rstrip("0").rstrip(".") if re.fullmatch(r"-?\d+\.\d+", text) else text


def _explain(run: _Run, record: Record) -> None:
    cursor = run.connection.cursor()
    cursor.execute(record.sql)
    lines = [str(row[0]) for row in cursor.fetchall()]
    if (missing := contains_in_order(list(record.expected or ()), lines)) is not None:
        raise Failure(f"the plan has no line {missing!r} here:\n" + "\n".join(lines))


def _plan(run: _Run, record: Record) -> None:
    cursor = run.connection.cursor()
    cursor.execute("EXPLAIN " + record.sql)
    lines = [str(row[0]) for row in cursor.fetchall()]
    for assertion in record.expected or ():
        if (found := broken(assertion.strip(), lines)) is not None:
            raise Failure(f"{assertion}: {found}\n" + "\n".join(lines))


def _schema(run: _Run, record: Record) -> None:
    """`union(null, T)` is a column that may be NULL."""
    cursor = run.connection.cursor()
    cursor.execute(f"DESCRIBE {record.arguments[0]}")
    found = {row[0]: (row[1], not row[2]) for row in cursor.fetchall()}
    for line in record.expected or ():
        name, kind = _cells(line)
        union = re.fullmatch(r"union\(null, (.+)\)", kind)
        wanted = (type_named(union[1] if union else kind).sql, union is not None)
        if found.get(name) != wanted:
            raise Failure(f"{line}: it is {found.get(name)}")


def _state(run: _Run, record: Record) -> None:
    label = record.arguments[0]
    held = Harness(run.connection).join_state(run.started[label].query.name if label in run.started else label)
    for line in record.expected or ():
        m = re.fullmatch(r"(left|right) (=|<=|>=) (\d+)", line.strip())
        if m is None:
            raise Failure(f"unknown assertion {line!r}")
        real, limit = held[m[1]], int(m[3])
        if not {"=": real == limit, "<=": real <= limit, ">=": real >= limit}[m[2]]:
            raise Failure(f"{line}: it is {real}")


def _cells(line: str) -> list[str]:
    return [c.strip() for c in re.split(r" \| |^\| | \|$", line)]


def _chosen(
    names: list[str], rows: Sequence[tuple[Any, ...]], columns: Sequence[str]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    if not columns:
        return names, list(rows)
    positions = []
    for column in columns:
        known = [n.lower() for n in names]  # files write names as SQL may, without regard to the folding of the dialect
        name = next((n for n in (column.lower(), column.lower().split(".")[-1]) if n in known), None)
        if name is None:
            raise Failure(f"the result has no column {column!r}, only {', '.join(names)}")
        positions.append(names.index(column) if column in names else known.index(name))
    return list(columns), [tuple(row[i] for i in positions) for row in rows]


_HANDLERS = {
    "statement": _statement,
    "query": _query,
    "insert": _insert,
    "expect": _expect,
    "explain": _explain,
    "plan": _plan,
    "schema": _schema,
    "state": _state,
    "at": _at,
    "commit": _commit,
    "start": _start,
    "stop": _stop,
    "watermark": _watermark,
    "failed": _failed,
    "external": _external,
}
