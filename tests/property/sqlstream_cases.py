"""Random SQLstream joins over the streams a, b and c (k, n) and the table d (k, n), each as SQL and by the rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.property.sqlstream_rules import (
    Condition,
    Range,
    Rows,
    Stream,
    Unit,
    Window,
    grouped,
    join,
    merged,
    with_kept_table,
    with_table,
)

#: The streams as they are, and the rows of the table when the query started.
Inputs = Callable[[Mapping[str, Stream], Sequence[tuple]], Stream]
_KINDS = ("inner", "left", "right", "full")
_WORDS = {
    "inner": ("JOIN", "INNER JOIN"),
    "left": ("LEFT JOIN", "LEFT OUTER JOIN"),
    "right": ("RIGHT JOIN", "RIGHT OUTER JOIN"),
    "full": ("FULL JOIN", "FULL OUTER JOIN"),
}


@dataclass(frozen=True)
class Case:
    """A query with the rowtime and the columns n of all its inputs, and its meaning.

    exact: it has no windows by rows, whose content may still change in the current moment, or no two rows of a stream
    have one time.
    """

    sql: str
    meaning: Inputs
    exact: bool = True


@dataclass(frozen=True)
class _Side:
    text: str
    alias: str
    window: Window
    rows: Inputs


def _window(rng: random.Random) -> tuple[str, Window]:
    kind = rng.choice(
        ("none", "current", "range", "range", "range", "between", "offset", "rows", "rows", "rows offset", "unit")
    )
    far, near = rng.randint(0, 25), rng.randint(0, 10)
    return {
        "none": ("", Range(0)),
        "current": (" OVER (RANGE CURRENT ROW)", Range(0)),
        "range": (f" OVER (RANGE INTERVAL '{far}' SECOND PRECEDING)", Range(far)),
        "between": (f" OVER (RANGE BETWEEN INTERVAL '{far}' SECOND PRECEDING AND CURRENT ROW)", Range(far)),
        "offset": (
            f" OVER (RANGE BETWEEN INTERVAL '{near + far}' SECOND PRECEDING AND INTERVAL '{near}' SECOND PRECEDING)",
            Range(near + far, near),
        ),
        "rows": (f" OVER (ROWS {near} PRECEDING)", Rows(near)),
        "rows offset": (
            f" OVER (ROWS BETWEEN {near + 3} PRECEDING AND {near % 4} PRECEDING)",
            Rows(near + 3, near % 4),
        ),
        "unit": (" OVER (ORDER BY FLOOR(ROWTIME TO MINUTE) RANGE CURRENT ROW)", Unit(60)),
    }[kind]


def _side(rng: random.Random, alias: str, *, rows: bool = True) -> _Side:
    name, other = rng.choice("abc"), rng.choice("abc")
    kind = rng.random()
    text, window = _window(rng)
    while isinstance(window, Rows) and not (rows and kind > 0.2):  # rows of one time have no order there
        text, window = _window(rng)
    if kind < 0.05:
        return _Side(
            f"(SELECT STREAM k, SUM(n) AS n FROM {name} GROUP BY {name}.ROWTIME, k){text} AS {alias}",
            alias,
            window,
            lambda streams, _: grouped(streams[name], None),
        )
    if kind < 0.12:
        return _Side(
            f"(SELECT STREAM k, SUM(n) AS n FROM {name} GROUP BY FLOOR({name}.ROWTIME TO MINUTE), k){text} AS {alias}",
            alias,
            window,
            lambda streams, _: grouped(streams[name], 60),
        )
    if kind < 0.2:
        return _Side(
            f"(SELECT STREAM k, n FROM {name} UNION ALL SELECT STREAM k, n FROM {other}){text} AS {alias}",
            alias,
            window,
            lambda streams, _: merged(streams[name], streams[other]),
        )
    if rng.random() < 0.25:
        return _Side(
            f"(SELECT STREAM * FROM {name} WHERE MOD(n, 3) <> 0){text} AS {alias}",
            alias,
            window,
            lambda streams, _: streams[name].where(lambda v: v[1] % 3 != 0),
        )
    return _Side(f"{name}{text} AS {alias}", alias, window, lambda streams, _: streams[name])


def _condition(rng: random.Random, left: str, right: str, at: int, *, keyed: bool = False) -> tuple[str, Condition]:
    """at: where the columns of `left` begin among the left values."""
    equal = f"{left}.k = {right}.k"

    def same(one: tuple, other: tuple) -> bool:
        return one[at] is not None and one[at] == other[0]

    found: list[tuple[str, Condition]] = [
        (equal, same),
        (f"{equal} AND {left}.n < {right}.n", lambda one, other: same(one, other) and one[at + 1] < other[1]),
        (f"{equal} AND {right}.n > 4", lambda one, other: same(one, other) and other[1] > 4),
        (f"{equal} AND {left}.n > 4", lambda one, other: same(one, other) and one[at + 1] > 4),
        (f"{left}.n = {right}.n AND {equal}", lambda one, other: same(one, other) and one[at + 1] == other[1]),
    ]
    if not keyed:
        found.append((f"{left}.n > {right}.n", lambda one, other: one[at + 1] > other[1]))
    text, condition = rng.choice([found[0], *found])

    def known(one: tuple, other: tuple) -> bool:
        """Nothing meets a row that is not there; only its k may be NULL otherwise."""
        return one[at + 1] is not None and condition(one, other)

    return text, known


def two_streams(rng: random.Random, distinct: bool) -> Case:
    one, other = _side(rng, "l"), _side(rng, "r")
    if rng.random() < 0.15:
        kind, on = "inner", lambda *_: True
        middle, end = rng.choice([(" CROSS JOIN ", ""), (", ", "")])
    else:
        kind = rng.choice(_KINDS)
        text, on = _condition(rng, "l", "r", 0)
        middle, end = f" {rng.choice(_WORDS[kind])} ", f" ON {text}"
    exact = distinct or not any(isinstance(s.window, Rows) for s in (one, other))
    return Case(
        f"SELECT STREAM ROWTIME AS t, l.n AS n1, r.n AS n2 FROM {one.text}{middle}{other.text}{end}",
        lambda streams, table: join(
            (one.rows(streams, table), one.window), (other.rows(streams, table), other.window), kind, on, (2, 2)
        ),
        exact,
    )


def three_streams(rng: random.Random, distinct: bool) -> Case:
    """The join of the first two takes part with its current row."""
    sides = [_side(rng, f"s{i}", rows=distinct or i == 2) for i in range(3)]  # what stays goes through the second join
    kinds = rng.choice(_KINDS), rng.choice(_KINDS)
    first, first_on = _condition(rng, "s0", "s1", 0, keyed=True)
    at = rng.choice((0, 2))
    second, second_on = _condition(rng, f"s{at // 2}", "s2", at, keyed=True)

    def meaning(streams: Mapping[str, Stream], table: Sequence[tuple]) -> Stream:
        inputs = [s.rows(streams, table) for s in sides]
        below = join((inputs[0], sides[0].window), (inputs[1], sides[1].window), kinds[0], first_on, (2, 2))
        return join((below, Range(0)), (inputs[2], sides[2].window), kinds[1], second_on, (4, 2))

    exact = distinct or not isinstance(sides[2].window, Rows)
    return Case(
        f"SELECT STREAM ROWTIME AS t, s0.n AS n1, s1.n AS n2, s2.n AS n3 FROM {sides[0].text} "
        f"{_WORDS[kinds[0]][0]} {sides[1].text} ON {first} "
        f"{_WORDS[kinds[1]][0]} {sides[2].text} ON {second}",
        meaning,
        exact,
    )


def one_stream(rng: random.Random, distinct: bool) -> Case:
    """Rows, groups and merged streams as they come out."""
    side = _side(rng, "l", rows=False)
    while " OVER " in side.text:
        side = _side(rng, "l", rows=False)
    return Case(
        f"SELECT STREAM ROWTIME AS t, l.n AS n1, l.k AS n2 FROM {side.text}",
        lambda streams, table: Stream([(t, (None, n, None, k)) for t, (k, n) in side.rows(streams, table).rows]),
    )


def stream_and_table(rng: random.Random, distinct: bool) -> Case:
    """The stream's window says nothing: each row looks the table up when it comes."""
    side, kind = _side(rng, "l"), rng.choice(("inner", "left"))
    text, on = _condition(rng, "l", "d", 0, keyed=True)
    if rng.random() < 0.3:
        word = {"inner": "JOIN", "left": "RIGHT JOIN"}[kind]
        tables = f"d {word} {side.text}"
    else:
        tables = f"{side.text} {_WORDS[kind][0]} d"
    return Case(
        f"SELECT STREAM ROWTIME AS t, l.n AS n1, d.n AS n2 FROM {tables} ON {text}",
        lambda streams, table: with_table(side.rows(streams, table), table, kind, on, 2),
    )


def joined_and_table(rng: random.Random, distinct: bool) -> Case:
    """The join of two streams looks the table up."""
    one, other, kind = _side(rng, "l"), _side(rng, "r"), rng.choice(_KINDS)
    last = rng.choice(("inner", "left"))
    text, on = _condition(rng, "l", "r", 0, keyed=True)
    second, second_on = _condition(rng, "l", "d", 0, keyed=True)
    exact = distinct or not any(isinstance(s.window, Rows) for s in (one, other))
    return Case(
        f"SELECT STREAM ROWTIME AS t, l.n AS n1, r.n AS n2, d.n AS n3 FROM {one.text} {_WORDS[kind][0]} "
        f"{other.text} ON {text} "
        f"{_WORDS[last][0]} d ON {second}",
        lambda streams, table: with_table(
            join((one.rows(streams, table), one.window), (other.rows(streams, table), other.window), kind, on, (2, 2)),
            table,
            last,
            second_on,
            2,
        ),
        exact,
    )


def kept_table(rng: random.Random, distinct: bool) -> Case:
    """Rows of the table that nothing met, when the minute ends."""
    name, kind = rng.choice("abc"), rng.choice(("right", "full"))
    text, on = _condition(rng, "l", "d", 0, keyed=True)
    return Case(
        f"SELECT STREAM ROWTIME AS t, l.n AS n1, d.n AS n2 FROM {name} OVER (ORDER BY FLOOR(ROWTIME TO "
        f"MINUTE) RANGE CURRENT ROW) AS l "
        f"{_WORDS[kind][1]} d ON {text}",
        lambda streams, table: with_kept_table(streams[name], 60, table, kind, on, (2, 2)),
    )


def unions(rng: random.Random, distinct: bool) -> Case:
    """Two streams merged, at the top of the query."""
    del distinct
    one, other = rng.choice("abc"), rng.choice("abc")
    return Case(
        f"SELECT STREAM ROWTIME AS t, k AS n1, n AS n2 FROM {one} UNION ALL SELECT STREAM ROWTIME, k, n FROM {other}",
        lambda streams, _: _doubled(merged(streams[one], streams[other])),
    )


def _doubled(stream: Stream) -> Stream:
    """Both columns of each row where those that are compared are."""
    return Stream([(time, (None, k, None, n)) for time, (k, n) in stream.rows], stream.clock)


MAKERS = (
    one_stream,
    two_streams,
    two_streams,
    two_streams,
    three_streams,
    stream_and_table,
    joined_and_table,
    kept_table,
    unions,
)
