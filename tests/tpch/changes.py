"""Random updates and deletes on every table, towards the values that the queries look for; deleted rows come back.

A scale factor of a thousandth leaves most queries without an answer. `STEERED` moves some rows into each.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pyarrow as pa

#: Applied to the generated tables before they are loaded.
STEERED = (
    "UPDATE supplier SET s_nationkey = [2, 3, 6, 7, 8, 20, 7, 3, 9, 12][1 + (s_suppkey % 10)::INT]",
    "UPDATE supplier SET s_comment = 'Customer with Complaints' WHERE s_suppkey % 10 = 4",
    "UPDATE customer SET c_nationkey = [2, 7, 6, 8, 9][1 + (c_custkey % 5)::INT]",
    "UPDATE part SET p_type = 'ECONOMY ANODIZED STEEL' WHERE p_partkey % 8 = 1",
    "UPDATE part SET p_type = 'SMALL PLATED BRASS', p_size = 15 WHERE p_partkey % 8 = 2",
    "UPDATE part SET p_brand = 'Brand#23', p_container = 'MED BOX' WHERE p_partkey % 8 = 3",
    "UPDATE part SET p_brand = 'Brand#12', p_container = 'SM BOX', p_size = 3 WHERE p_partkey % 8 = 4",
    "UPDATE part SET p_name = 'forest green' WHERE p_partkey % 8 = 5",
    "UPDATE lineitem SET l_quantity = 48 WHERE l_orderkey % 32 = 7",
    "UPDATE lineitem SET l_shipinstruct = 'DELIVER IN PERSON', l_shipmode = 'AIR' WHERE l_partkey % 4 = 0",
)

_DAY = "date '{}'"
_UPDATES: dict[str, dict[str, tuple[str, ...]]] = {
    "region": {"r_name": ("'EUROPE'", "'ASIA'", "'AMERICA'", "NULL")},
    "nation": {
        "n_name": ("'GERMANY'", "'FRANCE'", "'CANADA'", "'SAUDI ARABIA'", "'BRAZIL'"),
        "n_regionkey": ("0", "1", "2", "3", "NULL"),
    },
    "supplier": {
        "s_nationkey": ("2", "3", "6", "7", "8", "20", "NULL"),
        "s_acctbal": ("1.25", "-7.5", "s_acctbal + 1"),
        "s_comment": ("'Customer Complaints'", "'none'", "NULL"),
        "s_name": ("s_name || '!'",),
    },
    "part": {
        "p_type": ("'ECONOMY ANODIZED STEEL'", "'PROMO BRUSHED TIN'", "'LARGE BRASS'", "NULL"),
        "p_size": ("15", "3", "49", "NULL"),
        "p_brand": ("'Brand#23'", "'Brand#12'", "'Brand#45'", "NULL"),
        "p_container": ("'MED BOX'", "'SM BOX'"),
        "p_name": ("'forest green'", "'lime'", "NULL"),
    },
    "partsupp": {
        "ps_supplycost": ("1.01", "500.5", "ps_supplycost + 1", "NULL"),
        "ps_availqty": ("1", "9999", "20", "NULL"),
    },
    "customer": {
        "c_nationkey": ("2", "6", "7", "8", "NULL"),
        "c_mktsegment": ("'BUILDING'", "'MACHINERY'", "NULL"),
        "c_acctbal": ("9999.99", "-1", "c_acctbal + 10", "NULL"),
        "c_phone": ("'13-1'", "'29-7'", "NULL"),
    },
    "orders": {
        "o_orderdate": tuple(map(_DAY.format, ("1994-03-01", "1995-03-14", "1993-10-31", "1996-07-04"))),
        "o_custkey": ("1", "2", "4", "NULL"),
        "o_orderstatus": ("'F'", "'O'"),
        "o_orderpriority": ("'1-URGENT'", "'5-LOW'", "NULL"),
        "o_comment": ("'special requests'", "'plain'", "NULL"),
        "o_totalprice": ("100000.5", "o_totalprice * 2"),
    },
    "lineitem": {
        "l_quantity": ("1", "10", "49", "50", "NULL"),
        "l_discount": ("0.06", "0", "0.1"),
        "l_shipdate": tuple(map(_DAY.format, ("1994-06-01", "1995-09-15", "1996-02-01", "1998-09-03"))),
        "l_commitdate": (_DAY.format("1994-06-20"), "l_receiptdate - 1", "NULL"),
        "l_receiptdate": ("l_commitdate + 1", _DAY.format("1994-07-01"), "NULL"),
        "l_returnflag": ("'R'", "'N'"),
        "l_shipmode": ("'MAIL'", "'SHIP'", "'AIR'"),
        "l_suppkey": ("1", "2", "3"),
        "l_extendedprice": ("l_extendedprice + 0.01", "12345.67"),
        "l_tax": ("0.08",),
    },
}
_KEYS = {
    "region": "r_regionkey",
    "nation": "n_nationkey",
    "supplier": "s_suppkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey",
    "customer": "c_custkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey",
}

#: SQL, or rows for a table.
Change = str | tuple[str, pa.Table]


class Changes:
    """Makes changes of `loaded` tables."""

    def __init__(self, loaded: Mapping[str, pa.Table], seed: int) -> None:
        self._random = random.Random(seed)
        self._loaded = loaded
        self._gone: dict[str, list[int]] = {}

    def next(self) -> list[Change]:
        """Updates and a delete of every table; what the last call deleted of the smaller ones comes back."""
        found: list[Change] = [(t, self._rows(t, keys)) for t, keys in self._gone.items()]
        self._gone = {}
        tables = list(_UPDATES)
        self._random.shuffle(tables)
        for table in tables:
            found += [self._update(table) for _ in range(self._random.choice([1, 2, 4]))]
            keys = self._some(table)
            found.append(f"DELETE FROM {table} WHERE {_KEYS[table]} IN ({', '.join(map(str, keys))})")
            if table not in ("orders", "lineitem"):
                self._gone[table] = keys
        return found

    def _update(self, table: str) -> str:
        r = self._random
        columns = r.sample(list(_UPDATES[table]), min(len(_UPDATES[table]), r.choice([1, 1, 2])))
        values = ", ".join(f"{c} = {r.choice(_UPDATES[table][c])}" for c in columns)
        return f"UPDATE {table} SET {values} WHERE {_KEYS[table]} IN ({', '.join(map(str, self._some(table)))})"

    def _some(self, table: str) -> list[int]:
        keys = self._loaded[table][_KEYS[table]]
        count = 1 if len(keys) < 100 else self._random.choice([1, 3, 20])
        return sorted({int(keys[self._random.randrange(len(keys))].as_py()) for _ in range(count)})

    def _rows(self, table: str, keys: list[int]) -> pa.Table:
        rows = self._loaded[table]
        return rows.filter(pa.compute.is_in(rows[_KEYS[table]], pa.array(keys, rows[_KEYS[table]].type)))
