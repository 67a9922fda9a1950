"""Plain-Python references, written from the rules alone: multisets as Counters, nested loops, no state.

Rows are tuples of Python values. `norm` gives the form in which equal values (NULL = NULL, NaN = NaN,
-0.0 = 0.0) are equal and hashable.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from watersmeet.circuit.operators import InputColumn

Row = tuple[Any, ...]


def columns(*names: str) -> tuple[InputColumn, ...]:
    """The columns of a join's inputs that are called so: `l0`, `r1`, `t2_0`."""
    return tuple(map(InputColumn.of, names))


def norm(value: Any) -> Any:
    """A hashable form of a value in which equal values are equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((k, norm(v)) for k, v in value.items())
    if isinstance(value, tuple):  # intervals are tuples too
        return ("tuple", *(norm(v) for v in value))
    if isinstance(value, list):
        return ("list", *(norm(v) for v in value))
    return value


def row(values: Iterable[Any]) -> Row:
    """A row in normal form."""
    return tuple(norm(v) for v in values)


def keys_match(left: Sequence[Any], right: Sequence[Any], null_safe: Sequence[bool]) -> bool:
    """SQL's rule for each pair: `=`, where NULL matches nothing, or IS NOT DISTINCT FROM."""
    return all(
        (a is None and b is None and safe) or (a is not None and b is not None and norm(a) == norm(b))
        for a, b, safe in zip(left, right, null_safe, strict=True)
    )


def join(
    kind: str,
    left: Counter[Row],
    right: Counter[Row],
    *,
    left_keys: Sequence[int],
    right_keys: Sequence[int],
    null_safe: Sequence[bool],
    residual: Callable[[Row, Row], bool],
    output: Sequence[InputColumn],
    left_width: int,
    right_width: int,
) -> Counter[Row]:
    """The batch result of a join of two multisets, by nested loops."""

    def project(l_row: Row | None, r_row: Row | None) -> Row:
        sides = (l_row or (None,) * left_width, r_row or (None,) * right_width)
        return tuple(sides[c.input][c.column] for c in output)

    result: Counter[Row] = Counter()
    right_partners: Counter[Row] = Counter()
    for l_row, l_count in left.items():
        partners = [
            (r_row, r_count)
            for r_row, r_count in right.items()
            if keys_match([l_row[i] for i in left_keys], [r_row[i] for i in right_keys], null_safe)
            and residual(l_row, r_row)
        ]
        for r_row, _ in partners:
            right_partners[r_row] += 1
        if kind in ("semi", "anti"):
            if bool(partners) == (kind == "semi"):
                result[project(l_row, None)] += l_count
            continue
        for r_row, r_count in partners:
            result[project(l_row, r_row)] += l_count * r_count
        if not partners and kind in ("left", "full"):
            result[project(l_row, None)] += l_count
    if kind in ("right", "full"):
        for r_row, r_count in right.items():
            if not right_partners[r_row]:
                result[project(None, r_row)] += r_count
    return result


def unnest(
    content: Iterable[tuple[Row, int]],
    arrays: Sequence[int],
    keep: Sequence[int],
    *,
    ordinality: bool,
    outer: bool,
    condition: Callable[[Row, Row], bool],
) -> Counter[Row]:
    """Each row (with its count) once for every element of its longest array; NULLs where another is shorter."""
    result: Counter[Row] = Counter()
    for values, count in content:
        lists = [values[i] or [] for i in arrays]
        kept = tuple(values[i] for i in keep)
        found = []
        for n in range(max(map(len, lists))):
            made = tuple(x[n] if n < len(x) else None for x in lists) + ((n + 1,) if ordinality else ())
            if condition(values, made):
                found.append(made)
        if outer and not found:
            found = [(None,) * (len(arrays) + ordinality)]
        for made in found:
            result[row(kept + made)] += count
    return result


def dynamic_filter(
    left: Counter[Row],
    bounds: Sequence[Any],
    *,
    column: int,
    comparison: str,
    keep: Sequence[int],
    order: Callable[[Any], Any],
) -> Counter[Row]:
    """The batch result of a dynamic filter. bounds: no value or one. order: values as Python compares them."""
    result: Counter[Row] = Counter()
    if not bounds or bounds[0] is None:
        return result
    passes = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}
    for values, count in left.items():
        if values[column] is not None and passes[comparison](order(values[column]), order(bounds[0])):
            result[row(values[k] for k in keep)] += count
    return result


def time_filter(
    content: Counter[Row], bound: Any, *, column: int, comparison: str, keep: Sequence[int]
) -> Counter[Row]:
    """The batch result of a time filter whose bound is now `bound`; None: it is not known yet, so nothing is known to
    be past.
    """
    if bound is None and comparison[0] == "<":
        return Counter()
    least = dt.datetime(1, 1, 1)
    return dynamic_filter(
        content,
        [least if bound is None else bound],
        column=column,
        comparison=comparison,
        keep=keep,
        order=lambda time: time,
    )


def accumulate(content: Counter[Row], rows: Iterable[Sequence[Any]], diffs: Iterable[int]) -> None:
    """Applies changes to a multiset; AssertionError if a multiplicity falls below 0."""
    touched = set()
    for values, diff in zip(rows, diffs, strict=True):
        key = row(values)
        content[key] += int(diff)
        touched.add(key)
    for key in touched:
        assert content[key] >= 0, f"{key} has multiplicity {content[key]}"
        if not content[key]:
            del content[key]


def asof(
    kind: str,
    left: Counter[Row],
    right: Counter[Row],
    *,
    left_keys: Sequence[int],
    right_keys: Sequence[int],
    null_safe: Sequence[bool],
    comparison: str,
    left_value: int,
    right_value: int,
    ties: Sequence[int],
    output: Sequence[InputColumn],
    right_width: int,
) -> Counter[Row]:
    """The batch result of an ASOF join: of the right rows that fit, the nearest; of equally near ones the
    smaller one, then the first by `ties`.
    """
    fits: dict[str, Callable[[Any, Any], bool]] = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
        "<>": lambda a, b: a != b,
        "<=>": lambda a, b: True,
    }
    result: Counter[Row] = Counter()
    for l_row, l_count in left.items():
        value = l_row[left_value]
        near = [
            r
            for r in right
            if right[r] > 0
            and value is not None
            and r[right_value] is not None
            and keys_match([l_row[i] for i in left_keys], [r[i] for i in right_keys], null_safe)
            and fits[comparison](value, r[right_value])
        ]
        if near:
            there = [r[right_value] for r in near]
            if comparison in ("<>", "<=>"):
                best = min(there, key=lambda v: (abs(Fraction(v) - Fraction(value)), v))
            else:
                best = (min if comparison[0] == "<" else max)(there)
            chosen = min(
                (r for r in near if r[right_value] == best),
                key=lambda r: tuple((r[t] is None, r[t]) if r[t] is not None else (True,) for t in ties),
            )
        elif kind == "left":
            chosen = (None,) * right_width
        else:
            continue
        sides = (l_row, chosen)
        result[tuple(sides[c.input][c.column] for c in output)] += l_count
    return result


class LookUp:
    """A look-up join in which left rows that met nothing wait for their first match; rows only come on the left.

    A left row meets the right rows as they are at the end of the epoch in which it comes (kind left: if none fits, it
    comes out with
    NULLs). If none fits it waits, and comes out with all that fit at the end of the first epoch in which some do; then
    it is done, whatever comes. fits: of a left and a right row.
    """

    def __init__(
        self, kind: str, fits: Callable[[Row, Row], bool], output: Sequence[InputColumn], right_width: int
    ) -> None:
        self._kind = kind
        self._fits = fits
        self._output = output
        self._nothing = (None,) * right_width
        self.waiting: list[Row] = []

    def epoch(self, came: Iterable[Row], right: Counter[Row]) -> Counter[Row]:
        """What comes out in an epoch with the left rows `came` that ends with the content `right`."""
        result: Counter[Row] = Counter()
        waiting, fresh = self.waiting, list(came)
        self.waiting = []
        for number, left in enumerate([*waiting, *fresh]):
            met = [(r, n) for r, n in right.items() if n > 0 and self._fits(left, r)]
            for r, n in met:
                result[self._project(left, r)] += n
            if not met:
                self.waiting.append(left)
                if number >= len(waiting) and self._kind == "left":
                    result[self._project(left, self._nothing)] += 1
        return result

    def _project(self, left: Row, right: Row) -> Row:
        sides = (left, right)
        return row(sides[c.input][c.column] for c in self._output)


Epoch = tuple[bool, Sequence[tuple[Row, int]]]
"""What an operator is given in an epoch: whether it is history that is read for a new view, and rows with their diffs,
in order.
"""


def cut(epochs: Iterable[Epoch], keeps: str) -> Counter[Row]:
    """What was there when the query started, or what came and went from then on (numbers may be below 0)."""
    result: Counter[Row] = Counter()
    for filling, changes in epochs:
        for values, diff in changes:
            result[row(values)] += diff if filling == (keeps == "before") else 0
    return Counter({values: n for values, n in result.items() if n})


def arrivals(epochs: Iterable[Epoch]) -> list[Row]:
    """All rows that were written, the newest first; nothing takes one back."""
    came = [row(values) for _, changes in epochs for values, diff in changes if diff > 0]
    return came[::-1]
