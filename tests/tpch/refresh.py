"""TPC-H's refresh functions, made here: new orders with their lines (RF1), old orders that go with theirs (RF2).

As in the specification (2.5): a pair touches a thousandth of the orders, new keys come from the gaps that the generator
leaves (it uses 8 of each 32 keys), and foreign keys hold. Values are drawn from the loaded tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FIRST_DAY = dt.date(1992, 1, 1)
_DAYS = 2405
"""Orders are dated from 1992-01-01 to 151 days before the end of 1998."""
_MOST_LINES = 7
_CURRENT = np.datetime64("1995-06-17")


@dataclass(frozen=True)
class Pair:
    """One refresh: rows to insert, keys of the orders to delete."""

    orders: pa.Table
    lineitem: pa.Table
    deleted: tuple[int, ...]

    @property
    def deletions(self) -> tuple[str, str]:
        """RF2: lines first."""
        keys = ", ".join(map(str, self.deleted))
        return f"DELETE FROM lineitem WHERE l_orderkey IN ({keys})", f"DELETE FROM orders WHERE o_orderkey IN ({keys})"


class Refreshes:
    """Makes refresh pairs over `loaded` tables. share: of the orders, inserted and deleted by each pair."""

    def __init__(self, loaded: Mapping[str, pa.Table], seed: int = 0, share: float = 0.001) -> None:
        self._loaded = loaded
        self._random = np.random.default_rng(seed)
        self._old = self._random.permutation(_integers(loaded["orders"], "o_orderkey"))
        self._count = max(1, round(len(self._old) * share))
        self._number = 0

    def next(self) -> Pair:
        """The next pair."""
        first = self._number * self._count
        self._number += 1
        serial = np.arange(first, first + self._count)
        # The generator's keys have 0 in bits 3 and 4.
        keys = (serial >> 3 << 5) + (1 << 3) + (serial & 7)
        days = self._random.integers(0, _DAYS, self._count)
        lineitem, totals = self._lines(keys, days)
        deleted = self._old[first : first + self._count]
        return Pair(self._orders(keys, days, totals), lineitem, tuple(map(int, deleted)))

    def _orders(self, keys: np.ndarray, days: np.ndarray, totals: pa.Array) -> pa.Table:
        model = self._loaded["orders"].take(self._random.integers(0, self._loaded["orders"].num_rows, len(keys)))
        customers = _integers(self._loaded["customer"], "c_custkey")
        # A third of the customers never orders.
        customers = customers[customers % 3 != 0]
        status = np.where(days < (_CURRENT - np.datetime64(_FIRST_DAY)).astype(int) - 121, "F", "O")
        return _with(
            model,
            o_orderkey=keys,
            o_custkey=self._random.choice(customers, len(keys)),
            o_totalprice=totals,
            o_orderdate=_dates(days),
            o_orderstatus=status,
        )

    def _lines(self, keys: np.ndarray, days: np.ndarray) -> tuple[pa.Table, pa.Array]:
        """(the lines of new orders, the orders' totals)."""
        r = self._random
        counts = r.integers(1, _MOST_LINES + 1, len(keys))
        order = np.repeat(np.arange(len(keys)), counts)
        number = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        supplied = self._loaded["partsupp"].take(r.integers(0, self._loaded["partsupp"].num_rows, len(order)))
        model = self._loaded["lineitem"].take(r.integers(0, self._loaded["lineitem"].num_rows, len(order)))
        quantity = r.integers(1, 51, len(order))
        cents = quantity * r.integers(90_000, 200_000, len(order))
        shipped = days[order] + r.integers(1, 122, len(order))
        received = shipped + r.integers(1, 31, len(order))
        lines = _with(
            model,
            l_orderkey=keys[order],
            l_linenumber=number,
            l_partkey=supplied["ps_partkey"],
            l_suppkey=supplied["ps_suppkey"],
            l_quantity=_money(quantity * 100),
            l_extendedprice=_money(cents),
            l_shipdate=_dates(shipped),
            l_commitdate=_dates(days[order] + r.integers(30, 91, len(order))),
            l_receiptdate=_dates(received),
        )
        return lines, _money(np.bincount(order, cents, len(keys)).astype(np.int64))


def _integers(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()


def _money(cents: np.ndarray) -> pa.Array:
    return pc.multiply(pa.array(cents).cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.01")))


def _dates(days: np.ndarray | Sequence[int]) -> pa.Array:
    epoch = (_FIRST_DAY - dt.date(1970, 1, 1)).days
    return pa.array(np.asarray(days, np.int32) + np.int32(epoch)).cast(pa.date32())


def _with(model: pa.Table, **columns: object) -> pa.Table:
    for name, values in columns.items():
        place = model.column_names.index(name)
        kind = model.schema.field(name).type
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
        model = model.set_column(place, name, array.cast(kind))
    return model
