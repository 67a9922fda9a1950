"""Rows of a table that are there already, read in pieces by its key while changes go on.

A piece is read in one snapshot of the server. Which transactions that saw is known exactly, so a change of a row is
dropped if its piece has it already, and if its piece is still to be read. Nothing is locked, and the order of keys is
the server's own: it compares them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.clients.postgres import library
from watersmeet.sources.capture.positions import Chunk, TablePosition
from watersmeet.sources.capture.postgres.servers import end_of_log, snapshot_now
from watersmeet.sources.databasetables import texts_of

#: The types of a key, and the collations of columns that have not that of their type.
_KEY = """
SELECT a.attname::text, format_type(a.atttypid, NULL), n.nspname, c.collname
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY(%s)
"""


def read_chunk(
    connection: Any, table: tuple[str, str], columns: Sequence[str], key: Sequence[str], after: Sequence[str], rows: int
) -> tuple[list[pa.Array], Chunk]:
    """(the texts of the columns of the next rows behind the key `after`, what they are). Errors of the library.

    columns: those of the key among them.
    """
    sql = library().sql
    names = [sql.Identifier(c) for c in columns]
    keys = sql.SQL(", ").join(sql.Identifier(k) for k in key)
    bound = sql.SQL(", ").join(sql.Literal(t) for t in after)
    behind = sql.SQL(" WHERE ({}) > ({})").format(keys, bound) if after else sql.SQL("")
    query = sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {} LIMIT {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(
        sql.SQL(", ").join(names), sql.Identifier(*table), behind, keys, sql.Literal(rows)
    )
    received = io.BytesIO()
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        seen = snapshot_now(connection)
        with connection.cursor().copy(query) as copying:
            for block in copying:
                received.write(block)
    finally:
        connection.execute("ROLLBACK")
    texts = texts_of(received.getbuffer(), len(columns))
    count = len(texts[0])
    upto = () if count < rows else tuple(texts[list(columns).index(k)][count - 1].as_py() for k in key)
    return texts, Chunk(upto, seen, end_of_log(connection))


def wanted(
    connection: Any,
    oid: int,
    key: Sequence[str],
    position: TablePosition,
    keys: Sequence[pa.Array],
    xids: npt.NDArray[np.int64],
    commit_lsns: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Which changes of rows are neither in a piece already nor in one that is still to be read.

    keys: by column of the key, the texts of each change. xids, commit_lsns: of each change, its transaction.
    """
    pieces = _pieces(connection, oid, key, position, keys)
    found: npt.NDArray[np.bool_] = pieces == 0
    for i, chunk in enumerate(position.chunks):
        has = chunk.snapshot.sees(xids) & (commit_lsns < chunk.high_lsn)
        found |= (pieces == i + 1) & ~has
    return found


def _pieces(
    connection: Any, oid: int, key: Sequence[str], position: TablePosition, keys: Sequence[pa.Array]
) -> npt.NDArray[np.int64]:
    """By change, in which piece its key is: 0 in one that is settled, else the number of the chunk from 1; one more for
    what was not read.
    """
    count = len(keys[0])
    sql = library().sql
    types = {n: (kind, schema, collation) for n, kind, schema, collation in connection.execute(_KEY, [oid, [*key]])}
    names = [sql.Identifier(f"k{i}") for i in range(len(key))]
    ordered = sql.SQL(", ").join(
        sql.SQL("{} COLLATE {}").format(n, sql.Identifier(*types[k][1:])) if types[k][2] else n
        for n, k in zip(names, key, strict=True)
    )
    bounds = [position.settled, *(c.upto for c in position.chunks)]
    cases = [
        sql.SQL("WHEN ({}) <= ({}) THEN {}").format(ordered, sql.SQL(", ").join(map(sql.Literal, b)), sql.Literal(i))
        for i, b in enumerate(bounds)
        if b
    ]
    last = len(bounds) - 1 if position.done else len(bounds)
    if not cases:
        return np.full(count, last, np.int64)
    query = sql.SQL("SELECT CASE {} ELSE {} END FROM unnest({}) WITH ORDINALITY AS u({}, o) ORDER BY o").format(
        sql.SQL(" ").join(cases),
        sql.Literal(last),
        sql.SQL(", ").join(sql.SQL("%s::text[]::{}[]").format(sql.SQL(types[k][0])) for k in key),
        sql.SQL(", ").join(names),
    )
    rows = connection.execute(query, [k.to_pylist() for k in keys]).fetchall()
    return np.fromiter((r[0] for r in rows), np.int64, count)
