"""EXPLAIN ROW and EXPLAIN MISSING ROW of joins with the version of a row: against docs/SEMANTICS.md, "Joins with the
version of a row", applied change by change in plain Python.

What is explained is exactly what a row is made of, versions that were replaced or deleted since among it. Where both
sides have a watermark, only the newest version of each key behind both is kept: who looked for an older one is refused.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.property.lineage_plans import parts, rows_read
from tests.property.test_lineage import condition
from tests.thorough import mostly_slow
from watersmeet import Error

NEVER = -1000
JOIN = "{0} o {1} JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k"
#: By kind: what it shows, of what join.
KINDS = {
    "INNER": ("o.id AS c0, r.rate AS c1", JOIN.replace("{1} ", "")),
    "LEFT": ("o.id AS c0, r.rate AS c1", JOIN.replace("{1}", "LEFT")),
    "EQUAL": ("o.k AS c0, r.rate AS c1", JOIN.replace("{1}", "LEFT")),
    "COMPARED": ("o.id AS c0, r.rate AS c1", JOIN.replace("{1}", "LEFT") + " AND r.rate > 2"),
    "GROUPED": ("o.k AS c0, count(*) AS c1", JOIN.replace("{1} ", "") + " GROUP BY o.k"),
}


def at(hour):
    return f"2024-01-01 {hour:02}:00:00"


@dataclass
class Rates:
    """The table, and the versions of its rows. versions: by key, by hour from which it counts, the row, and whether it
    is there from then on. bound: rows of hours below it are late. delay: in hours.
    """

    delay: int
    rows: dict = field(default_factory=dict)
    versions: dict = field(default_factory=dict)
    newest: int = NEVER
    bound: int = NEVER

    def transaction(self, changed):
        """What a transaction leaves: by key, the new row, or None."""
        for key, row in changed.items():
            old = self.rows.get(key)
            if row == old:
                continue
            if row is None:
                del self.rows[key]
            else:
                self.rows[key] = row
                self.newest = max(self.newest, row[1])
            self.say(key, row or old, live=row is not None)

    def say(self, key, row, *, live):
        of_key, since = self.versions.setdefault(key, {}), row[1]
        if since < self.bound:
            there = [h for h in of_key if h <= self.bound]
            if there and of_key[max(there)][0][1] > since:
                return
            since = self.bound
        of_key[since] = row, live

    def epoch(self):
        self.bound = max(self.bound, self.newest - self.delay)

    def nearest(self, key, hour):
        of_key = self.versions.get(key, {})
        hours = [h for h in of_key if h <= hour]
        return of_key[max(hours)] if hours else None

    def is_forgotten(self, key, hour, bound):
        """Whether what was valid then is not kept: a later version is also behind the watermarks."""
        return any(hour < h < bound for h in self.versions.get(key, {}))


@dataclass
class View:
    kind: str
    left: str

    @property
    def sql(self):
        shown, source = KINDS[self.kind]
        return f"SELECT {shown} FROM {source.format(self.left)}"

    def partner(self, row, rates):
        found = rates.nearest(row[1], row[2])
        if found is None or not found[1] or (self.kind == "COMPARED" and (found[0][2] or 0) <= 2):
            return None
        return found[0]

    def out(self, rows, rates):
        """What it has, as values with what they are made of."""
        found = []
        for row in rows:
            partner = self.partner(row, rates)
            own = frozenset([(self.left, row)])
            first = row[1] if self.kind in ("EQUAL", "GROUPED") else row[0]
            if partner is not None:
                found.append(((first, partner[2]), own | {("rates", partner)}))
            elif self.kind not in ("INNER", "GROUPED"):
                found.append(((first, None), own))
        if self.kind == "GROUPED":
            groups = {k: [lineage for (c0, _), lineage in found if c0 == k] for k in {c0 for (c0, _), _ in found}}
            return [((k, len(made)), frozenset().union(*made)) for k, made in groups.items()]
        return found

    def is_refused(self, values, rows, rates, bound):
        """Whether a row with these values can't be told: it, or what seems to be one, looked for what is forgotten."""
        for row in rows:
            if not rates.is_forgotten(row[1], row[2], bound):
                continue
            first, partner = row[1] if self.kind in ("EQUAL", "GROUPED") else row[0], self.partner(row, rates)
            if self.kind == "GROUPED" and first == values[0] and partner is not None:
                return True
            true = (first, partner[2]) if partner is not None else (first, None)
            if self.kind != "GROUPED" and values in (true, (first, None)):
                return True
        return False


def read(lines):
    return frozenset((name, tuple(_value(v) for v in row.values())) for name, row in rows_read(lines, "table"))


def _value(shown):
    return int(shown[11:13]) if isinstance(shown, str) else shown


def check(connection, name, view, rows, rates, bound):
    out = view.out(rows, rates)
    found = [tuple(r) for r in connection.execute(f"SELECT * FROM {name}").fetchall()]
    assert Counter(found) == Counter(v for v, _ in out), view.sql
    refused = 0
    for values in dict.fromkeys(found):
        sql = f"EXPLAIN ROW SELECT * FROM {name} WHERE {condition(dict(enumerate(values)))}"
        if view.is_refused(values, rows, rates, bound):
            refused += 1
            with pytest.raises(Error) as raised:
                connection.execute(sql)
            assert raised.value.condition == "HISTORY_GONE", view.sql
            continue
        lines = connection.execute(sql).fetchall()
        assert read(lines) == frozenset().union(*(made for v, made in out if v == values)), (view.sql, values, lines)
    if view.kind == "INNER":
        for row in [r for r in rows if view.partner(r, rates) is None]:
            refused += check_missing(connection, name, row, rates, bound)
    return refused


def check_missing(connection, name, row, rates, bound):
    sql = f"EXPLAIN MISSING ROW {name} WHERE c0 = {row[0]}"
    if rates.is_forgotten(row[1], row[2], bound):
        with pytest.raises(Error) as raised:
            connection.execute(sql)
        assert raised.value.condition == "HISTORY_GONE"
        return 1
    lines = connection.execute(sql).fetchall()
    (said,) = [detail for step, *_, detail in lines if parts(step)[1] == "no partner"]
    if row[1] is None:
        wanted = "rates.k = NULL was looked for"
    elif rates.nearest(row[1], row[2]) is not None:
        wanted = "the nearest row does not meet rates._live"
    elif rates.versions.get(row[1]):
        wanted = f"no rates._since with '{at(row[2])}' >= rates._since; the nearest: '"
        wanted += at(min(rates.versions[row[1]])) + "'"
    else:
        wanted = f"no row with rates.k = {row[1]}"
    assert said.startswith(wanted), (said, wanted)
    assert read(lines) == {next((n, row) for n in ("orders", "events") for _, r, *_ in lines if r == n)}
    return 0


def change_rates(rng, rates):
    """A random transaction: its statements, and by key the row that it leaves."""
    statements, changed = [], {}
    for _ in range(rng.choice([1, 1, 2])):
        key, hour, rate = rng.randint(1, 3), rng.randrange(24), rng.choice([None, 1, 2, 3, 4])
        there = changed[key] if key in changed else rates.rows.get(key)
        kind = rng.choice(["put", "put", "put", "update", "delete"])
        shown = "NULL" if rate is None else rate
        if kind == "put" or there is None:
            statements.append(f"INSERT INTO rates VALUES ({key}, '{at(hour)}', {shown})")
            changed[key] = (key, hour, rate)
        elif kind == "update":
            statements.append(f"UPDATE rates SET rate = {shown} WHERE k = {key}")
            changed[key] = (key, there[1], rate)
        else:
            statements.append(f"DELETE FROM rates WHERE k = {key}")
            changed[key] = None
    return statements, changed


# the first two have rows that looked for what is forgotten
@pytest.mark.parametrize("seed", mostly_slow([14, 18, *range(14), *range(19, 60)], 2, 7))
def test_the_version_of_a_row(seed):
    rng = random.Random(seed)
    rates = Rates(delay=rng.choice([1, 4, 30]))
    with watersmeet.connect(runtime="inprocess", parallelism=rng.choice([1, 2])) as connection:
        mark = "WATERMARK FOR ts AS ts - INTERVAL '{} hours'"
        connection.execute(
            f"CREATE TABLE rates (k int PRIMARY KEY, ts timestamp, rate int, {mark.format(rates.delay)})"
        )
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, k int, ts timestamp)")
        connection.execute(f"CREATE TABLE events (id int, k int, ts timestamp, {mark.format(2)}) APPEND ONLY")
        views = [View(kind, "events") for kind in rng.sample(list(KINDS), 2)]
        views += [View(kind, "orders") for kind in rng.sample(list(KINDS), 2)]
        born = [0, 0, 0, rng.randrange(3)]  # one that comes later has the versions that the other one keeps
        left, newest, numbers = {"orders": {}, "events": {}}, NEVER, iter(range(1, 100))
        for step in range(9):
            for number, view in enumerate(views):
                if born[number] == step:
                    connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS {view.sql}")
            statements, changed = change_rates(rng, rates)
            connection.execute("BEGIN")
            for statement in statements:
                connection.execute(statement)
            rates.transaction(changed)
            seen = newest
            for _ in range(rng.choice([1, 2])):
                # none of them is late
                row = (next(numbers), rng.choice([None, 1, 2, 3, 4]), rng.randrange(max(0, min(newest - 2, 23)), 24))
                name = rng.choice(["orders", "events"])
                if name == "orders" and left[name] and rng.random() < 0.4:
                    row = (rng.choice(list(left[name])), *row[1:])
                    connection.execute(f"DELETE FROM orders WHERE id = {row[0]}")
                key = "NULL" if row[1] is None else row[1]
                connection.execute(f"INSERT INTO {name} VALUES ({row[0]}, {key}, '{at(row[2])}')")
                left[name][row[0]] = row
                seen = max(seen, row[2]) if name == "events" else seen
            connection.execute("COMMIT")
            # a transaction is an epoch, and in the next one late rows are those below its watermark
            connection.flush()
            newest = seen
            rates.epoch()
        for number, view in enumerate(views):
            bound = min(newest - 2, rates.bound) if view.left == "events" else NEVER
            check(connection, f"v{number}", view, list(left[view.left].values()), rates, bound)
