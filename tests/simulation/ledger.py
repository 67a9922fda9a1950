"""What sessions asked for and what they were told, and what follows from it for the content of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import duckdb

from tests.simulation.world import Violation

#: open: nobody was told anything (yet). unknown: the session was told that nobody knows.
Fate = Literal["open", "acknowledged", "refused", "unknown"]
Rows = Counter[tuple]

TABLES = {
    "a": "id int PRIMARY KEY, k int, x int",
    "b": "id int, k int, y int",
    "done": "n int",
}
VIEWS = {
    "j": "SELECT a.id, a.k, a.x, b.id AS bid, b.y FROM a LEFT JOIN b ON a.k = b.k",
    "g": "SELECT k, count(*) AS n, sum(y) AS y FROM j GROUP BY k",
}
#: All relations in one statement, so that all are of one moment.
EVERYTHING = " UNION ALL ".join(
    f"SELECT '{name}' AS r, {columns} FROM {name}"
    for name, columns in {
        "a": "id::bigint AS c0, k::bigint AS c1, x::bigint AS c2, NULL::bigint AS c3, NULL::bigint AS c4",
        "b": "id::bigint, k::bigint, y::bigint, NULL::bigint, NULL::bigint",
        "done": "n::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint",
        "j": "id::bigint, k::bigint, x::bigint, bid::bigint, y::bigint",
        "g": "k::bigint, n::bigint, y::bigint, NULL::bigint, NULL::bigint",
    }.items()
)
_WIDTHS = {"a": 3, "b": 3, "done": 1, "j": 5, "g": 3}


@dataclass(frozen=True)
class Change:
    """A row of table `table` comes (in place of the one of its id), or goes (`row` has only the id)."""

    table: str
    row: tuple[int, ...]

    @property
    def sql(self) -> str:
        if len(self.row) == 1:
            return f"DELETE FROM {self.table} WHERE id = {self.row[0]}"
        return f"INSERT INTO {self.table} VALUES ({', '.join(map(str, self.row))})"


@dataclass
class Transaction:
    """number: its row in `done`, which says that it is there."""

    number: int
    session: str
    changes: list[Change]
    fate: Fate = "open"


@dataclass
class Ledger:
    """relations: by name of a table or view that a session created, its fate; a view's text."""

    transactions: list[Transaction] = field(default_factory=list)
    relations: dict[str, Fate] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=lambda: dict(VIEWS))

    def begin(self, session: str, changes: list[Change]) -> Transaction:
        made = Transaction(len(self.transactions) + 1, session, changes)
        self.transactions.append(made)
        return made

    def acknowledged(self) -> set[int]:
        return {t.number for t in self.transactions if t.fate == "acknowledged"}

    def tables(self, numbers: Iterable[int]) -> dict[str, Rows]:
        """The content of the tables if exactly the transactions `numbers` have happened.

        Sessions change rows of their own, so that only the order within each session matters.
        """
        happened = set(numbers)
        rows: dict[str, dict[int, tuple[int, ...]]] = {"a": {}, "b": {}}
        for transaction in self.transactions:
            if transaction.number in happened:
                for change in transaction.changes:
                    if len(change.row) == 1:
                        rows[change.table].pop(change.row[0], None)
                    else:
                        rows[change.table][change.row[0]] = change.row
        found = {name: Counter(content.values()) for name, content in rows.items()}
        return {**found, "done": Counter((n,) for n in happened)}

    def check_moment(self, found: list[tuple], where: str) -> set[int]:
        """Checks rows of EVERYTHING: one moment at which transactions have happened wholly or not at all, and views
        are what their queries give. The numbers of those that have happened.
        """
        content: dict[str, Rows] = {name: Counter() for name in _WIDTHS}
        for name, *row in found:
            content[name][tuple(row[: _WIDTHS[name]])] += 1
        content["done"].pop((0,), None)  # no transaction: it only makes the newest commit another one
        happened = {n for (n,) in content["done"]}
        expected = {**self.tables(happened)}
        expected |= joined(expected)
        for name, rows in expected.items():
            if content[name] != rows:
                raise Violation(f"{where}: {name} is {_shown(content[name])} in place of {_shown(rows)}")
        return happened

    def check_final(self, happened: set[int]) -> None:
        """What was acknowledged is there, what was refused is not."""
        if lost := self.acknowledged() - happened:
            raise Violation(f"acknowledged, but not there: {sorted(lost)}")
        refused = {t.number for t in self.transactions if t.fate == "refused"}
        if there := refused & happened:
            raise Violation(f"refused, but there: {sorted(there)}")

    def check_relations(self, names: set[str]) -> None:
        """The same of tables and views that sessions created."""
        for name, fate in self.relations.items():
            if fate == "acknowledged" and name not in names:
                raise Violation(f"{name} was created, but is not there")
            if fate == "refused" and name in names:
                raise Violation(f"{name} was refused, but is there")


def joined(tables: dict[str, Rows]) -> dict[str, Rows]:
    """The views of tables, by rules written here alone."""
    by_key: dict[int, list[tuple[int, ...]]] = {}
    for i, k, y in tables["b"].elements():
        by_key.setdefault(k, []).append((i, y))
    pairs = [(i, k, x, *match) for i, k, x in tables["a"].elements() for match in by_key.get(k) or [(None, None)]]
    groups: dict[int, list[int | None]] = {}
    for _, k, _, _, y in pairs:
        groups.setdefault(k, []).append(y)
    sums = {k: [y for y in ys if y is not None] for k, ys in groups.items()}
    return {
        "j": Counter(pairs),
        "g": Counter((k, len(ys), sum(sums[k]) if sums[k] else None) for k, ys in groups.items()),
    }


_DUCKDB = duckdb.connect()


def by_duckdb(tables: dict[str, Rows], queries: dict[str, str]) -> dict[str, Rows]:
    """The results of queries over tables, each of which may read those before it."""
    for name, columns in TABLES.items():
        _DUCKDB.execute(f"CREATE OR REPLACE TABLE {name} ({columns})")
        rows = list(tables[name].elements())
        if rows:
            marks = ", ".join("?" for _ in rows[0])
            _DUCKDB.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    found = {}
    for name, query in queries.items():
        _DUCKDB.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")
        found[name] = Counter(_DUCKDB.execute(f"SELECT * FROM {name}").fetchall())
    for name in reversed(queries):
        _DUCKDB.execute(f"DROP VIEW {name}")
    return found


def _shown(rows: Rows) -> str:
    return str(sorted(rows.elements(), key=str)[:20])
