"""Refreshes external tables and dictionaries by committing the difference between their sources and the stored content.

An external table is read when a statement names it, a dictionary also whenever views are updated. The difference is a
transaction, so that tasks, other processes and a restart see it like any other change.

The layout `ip_trie` (ClickHouse, "ip_trie") stores networks of IP addresses as disjoint ranges, each with the row of
the longest matching prefix.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import AddressRanges, ExternalTable, Relation, View
from watersmeet.connectors.base.sources import Condition, Pushdown
from watersmeet.database.reading import BatchQuery, fetch, last_of_each_key
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change, consolidated
from watersmeet.errors import Error, error
from watersmeet.expressions.webfunctions import DIGITS, address_sql, network_sql, rest_sql
from watersmeet.formats.valuetexts import evaluate
from watersmeet.store.changes import quoted
from watersmeet.values.types import VARCHAR, Field, Schema, arrow_schema

NETWORK: Final = "~network"
FIRST: Final = "~first"
LAST: Final = "~last"
PLACES: Final[Schema] = tuple(Field(name, VARCHAR, nullable=False) for name in (NETWORK, FIRST, LAST))

"""The columns of ranges that precede those of the dictionary: `network_sql`, and `rest_sql` of both ends."""

_BITS: Final = 128

#: Addresses, each as two numbers of 64 bits, the higher one first.
Addresses = npt.NDArray[np.uint64]

Ints = npt.NDArray[np.int64]

#: Addresses as hexadecimal texts, which have the same order.
Digits = npt.NDArray[np.bytes_]

_ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_KEY: Final = np.uint64(0xFFFF)
_ONE: Final = np.uint64(1)

#: The first address of IPv4, and the address after the last.
_IPV4: Final = np.array([[0, 0xFFFF_0000_0000], [0, 0x1_0000_0000_0000]], np.uint64)

#: The number of address bits after the key, for IPv4 and for other addresses.
_REST_4: Final = np.uint64(16)

_REST_6: Final = np.uint64(48)


def address_ranges(relation: AddressRanges, rows: pa.Table) -> pa.Table:
    """The content of `relation`, computed from the rows of its source: `PLACES` and the source's columns.

    Of several rows of one network, the last one counts. All addresses of a range have one key, so a prefix that is
    shorter than a key becomes many ranges. Raises INVALID_VALUE for invalid networks.
    """
    (column,) = relation.networks
    prefixes = rows.column(column)
    if not len(prefixes):
        return pa.table([pa.array([], pa.string())] * len(PLACES) + rows.columns, names=_names(rows))
    begins, ends, winners = _pieces(*_networks(relation, prefixes))
    begins, ends, pieces = _split(begins, ends)
    network, first = evaluate([_text(begins)], [network_sql("t0"), rest_sql("t0")])
    (last,) = evaluate([_text(ends)], [rest_sql("t0")])
    found = rows.take(pa.array(winners[pieces]))
    return pa.table([network, first, last, *found.columns], names=_names(rows))


def _names(rows: pa.Table) -> list[str]:
    return [*(c.name for c in PLACES), *rows.column_names]


def _networks(relation: AddressRanges, prefixes: pa.ChunkedArray) -> tuple[Addresses, Addresses, Ints]:
    """(first address, last address, bits of the prefix) of each network."""
    address, bits = "split_part(t0, '/', 1)", "CAST(TRY_CAST(split_part(t0, '/', 2) AS UTINYINT) AS BIGINT)"
    most = f"CASE WHEN contains({address}, ':') THEN {_BITS} ELSE 32 END"
    given = f"CASE WHEN NOT contains(t0, '/') THEN {most} WHEN {bits} <= {most} THEN {bits} END"
    length = f"CASE WHEN regexp_full_match(t0, '[^/]*(/[0-9]+)?') THEN {given} + {_BITS} - {most} END"
    digits, sizes = evaluate([prefixes], [address_sql(address), length])
    bad = pc.indices_nonzero(pc.or_(digits.is_null(), sizes.is_null()))
    if len(bad):
        raise error(
            "INVALID_VALUE",
            f'key "{prefixes[bad[0].as_py()].as_py()}" of dictionary "{relation.name}" is no network of IP addresses',
            hint="Layout IP_TRIE takes 10.1.0.0/16, 2001:db8::/32 and single addresses.",
        )
    lengths = sizes.to_numpy().astype(np.int64)
    mask = _mask(lengths)
    first = _addresses(np.frombuffer(digits.buffers()[2], f"S{DIGITS}", len(digits))) & mask
    return first, first | ~mask, lengths


def _mask(lengths: Ints) -> Addresses:
    """The masks of prefixes with these lengths."""
    halves = [np.clip(lengths - begin, 0, 64).astype(np.uint64) for begin in (0, 64)]
    return np.stack([np.where(h == 0, 0, _ALL << (np.uint64(64) - np.maximum(h, _ONE))) for h in halves], axis=1)


def _pieces(first: Addresses, last: Addresses, lengths: Ints) -> tuple[Addresses, Addresses, Ints]:
    """The ranges (first address, last address, index of the network with the longest prefix), in order."""
    is_end = (last == _ALL).all(axis=1)
    firsts, behind = _digits(first), _digits(_after(last))
    points = np.unique(np.concatenate([firsts, behind[~is_end], _digits(_IPV4)]))
    begin = np.searchsorted(points, firsts)
    end = np.where(is_end, len(points), np.searchsorted(points, behind))
    winners = np.full(len(points), -1, np.int64)
    for length in np.unique(lengths):  # networks of equal length are disjoint, and longer ones lie within shorter ones
        found = np.flatnonzero(lengths == length)
        places, networks = _spread(begin[found], end[found] - begin[found])
        winners[places] = found[networks]
    there = np.flatnonzero(winners >= 0)
    begins = _addresses(points)
    ends = np.concatenate([_before(begins[1:]), np.full((1, 2), _ALL)])
    return begins[there], ends[there], winners[there]


def _split(begins: Addresses, ends: Addresses) -> tuple[Addresses, Addresses, Ints]:
    """The ranges, split where their keys change, and the index of each one's original. No range is partly IPv4."""
    is_four = (begins[:, 0] == 0) & (begins[:, 1] >= _IPV4[0, 1]) & (begins[:, 1] < _IPV4[1, 1])
    key, last_key = (np.where(is_four, n[:, 1] >> _REST_4 & _KEY, n[:, 0] >> _REST_6) for n in (begins, ends))
    counts = (last_key - key).astype(np.int64) + 1
    keys, pieces = _spread(key.astype(np.int64), counts)
    four, keys = is_four[pieces], keys.astype(np.uint64)
    high = np.where(four, 0, keys << _REST_6)
    low = np.where(four, _IPV4[0, 1] | keys << _REST_4, 0)
    rest_high = np.where(four, 0, (_ONE << _REST_6) - _ONE)
    rest_low = np.where(four, (_ONE << _REST_4) - _ONE, _ALL)
    of_key = np.stack([high, low], axis=1)
    to_key = np.stack([high | rest_high, low | rest_low], axis=1)
    is_first, is_last = keys == key[pieces], keys == last_key[pieces]
    return (
        np.where(is_first[:, None], begins[pieces], of_key),
        np.where(is_last[:, None], ends[pieces], to_key),
        pieces,
    )


def _spread(begin: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """For each range `counts` numbers, from its begin upwards, and for each number the index of its range."""
    of = np.repeat(np.arange(len(counts)), counts)
    offsets = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return begin[of] + offsets, of


def _after(addresses: Addresses) -> Addresses:
    low = addresses[:, 1] + _ONE
    return np.stack([addresses[:, 0] + (low == 0), low], axis=1)


def _before(addresses: Addresses) -> Addresses:
    low = addresses[:, 1] - _ONE
    return np.stack([addresses[:, 0] - (low == _ALL), low], axis=1)


def _digits(addresses: Addresses) -> Digits:
    return np.frombuffer(binascii.hexlify(addresses.astype(">u8").tobytes()), f"S{DIGITS}")


def _addresses(digits: Digits) -> Addresses:
    return np.frombuffer(binascii.unhexlify(digits.tobytes()), ">u8").astype(np.uint64).reshape(-1, 2)


def _text(addresses: Addresses) -> pa.Array:
    size = len(addresses)
    fixed = pa.Array.from_buffers(pa.binary(DIGITS), size, [None, pa.py_buffer(_digits(addresses).tobytes())])
    return fixed.cast(pa.binary()).cast(pa.string())


_INCOMING = "_incoming"


def columns_to_read(relation: Relation) -> Schema:
    """The columns to read from the source; they are nullable if `with_defaults` replaces NULL."""
    defaults = () if relation.dictionary is None else relation.dictionary.defaults
    columns = relation.columns[len(PLACES) :] if isinstance(relation, AddressRanges) else relation.columns
    return tuple(replace(c, nullable=c.nullable or c.name in defaults) for c in columns)


def with_defaults(session: Session, relation: Relation, rows: pa.Table) -> pa.Table:
    """The rows with NULL replaced by the defaults of NOT NULL attributes."""
    dictionary = relation.dictionary
    assert dictionary is not None
    for name, default in dictionary.defaults.items():
        column = relation.column(name)
        if not column.nullable and rows.column(name).null_count:
            with session.database.content.session() as connection:
                made = connection.execute(f"SELECT CAST({default} AS {column.type.duckdb}) AS v").to_arrow_table()
            value = made.column(0)[0].cast(rows.schema.field(name).type)
            filled = pc.coalesce(rows.column(name), value)
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), filled)
    return rows


def check_content(session: Session, relation: Relation, rows: pa.Table) -> None:
    """Raises INVALID_VALUE for a key that the layout does not support, or for overlapping ranges of one key.

    rows: each primary key has one.
    """
    dictionary = relation.dictionary
    assert dictionary is not None
    if dictionary.keys_below is not None and rows.num_rows:
        _check_flat(relation, rows, dictionary.keys_below)
    if dictionary.bounds and not isinstance(relation, AddressRanges):
        _check_ranges(session, relation, rows)


def _check_flat(relation: Relation, rows: pa.Table, below: int) -> None:
    (name,) = relation.primary_key
    found = pc.min_max(rows.column(name)).as_py()
    value = next((v for v in (found["min"], found["max"]) if v is not None and not 0 <= v < below), None)
    if value is not None:
        raise error(
            "INVALID_VALUE",
            f'key {value} of dictionary "{relation.name}" is out of range for layout FLAT',
            detail=f"Its keys are whole numbers from 0 to {below - 1}.",
            hint="FLAT(MAX_ARRAY_SIZE n) accepts keys below n. HASHED accepts all keys.",
        )


def _check_ranges(session: Session, relation: Relation, rows: pa.Table) -> None:
    """Raises INVALID_VALUE if a date is in two ranges of one key."""
    dictionary = relation.dictionary
    assert dictionary is not None
    *key, first = (quoted(n) for n in relation.primary_key)
    last, keys = quoted(dictionary.bounds[1]), ", ".join(key)
    with session.database.content.session() as connection:
        connection.register(_INCOMING, rows)
        try:
            found = connection.execute(
                f"""WITH dated AS (SELECT {keys}, {first}, {last}, lead({first}) OVER (PARTITION BY {keys}
                ORDER BY {first}) AS next FROM {_INCOMING} WHERE {last} IS NULL OR {first} <= {last})
                SELECT * FROM dated WHERE next IS NOT NULL AND ({last} IS NULL OR next <= {last}) LIMIT 1"""
            ).fetchone()
        finally:
            connection.unregister(_INCOMING)
    if found is not None:
        *values, start, end, following = found
        shown = ", ".join(map(str, values))
        raise error(
            "INVALID_VALUE",
            f'ranges of key {shown} of dictionary "{relation.name}" overlap',
            detail=f"One is from {start} to {'the end' if end is None else end}, the next one begins at {following}.",
            hint="Ranges that overlap are not supported: a date must have one row of its key.",
        )


def reads_outside(session: Session, relation: Relation) -> bool:
    """Whether the session reads the content of an external relation from its system. A fork has the content that the
    main database has read, except of tables that only queries read.
    """
    database = session.database
    return not database.read_only and (not database.layout.is_fork or relation.id in database.own.external)


def refresh(session: Session, relation: ExternalTable) -> bool:
    """Fetches the current content of an external table or dictionary.

    Returns whether it has changed. Raises errors of the reader and NOT_NULL_VIOLATION.
    """
    readers = session.database.external_readers
    with readers.lock:
        try:
            readers.checked_us[relation.id] = session.database.clock.now_us()
            reader = readers.reader(relation.external)
            version = reader.version()
            if relation.id in readers.versions and readers.versions[relation.id] == version:
                return False
            columns = columns_to_read(relation)
            rows = reader.read(relation.external.named(columns)).rename_columns([c.name for c in columns])
            changed = _replace(session, relation, rows)
        except Error as err:
            readers.problems[relation.id] = err
            raise
        readers.versions[relation.id] = version
        readers.problems.pop(relation.id)
        return changed


def is_due(session: Session, relation: ExternalTable) -> bool:
    """Whether the source of a looked-up relation is due to be checked."""
    checked_us = session.database.external_readers.checked_us.get(relation.id)
    if checked_us is None:
        return True
    # After the clock was set back, the age is unknown.
    return not 0 <= session.database.clock.now_us() - checked_us < relation.external.max_age_us


def needed_rows(session: Session, pushdowns: Iterable[Pushdown]) -> dict[str, pa.Table]:
    """For each external table of which a query only needs a part, and whose stored content may be older, the rows and
    columns that it needs, by relation id. `refresh_read` refreshes the other tables.
    """
    if session.database.read_only:
        return {}
    found = {}
    for part in pushdowns:
        relation = session.catalog.relations[part.relation_id]
        assert isinstance(relation, ExternalTable)
        if not reads_outside(session, relation):
            continue
        is_whole = not part.conditions and len(part.columns) == len(relation.columns)
        if not is_whole and relation.dictionary is None and not relation.primary_key:
            rows = _needed(session, relation, part)
            if rows is not None:
                found[relation.id] = rows
    return found


def _needed(session: Session, relation: ExternalTable, part: Pushdown) -> pa.Table | None:
    """Returns None if the reader can't read a part, or the stored content is current. Raises the errors of
    `refresh`.
    """
    readers = session.database.external_readers
    reader = readers.reader(relation.external)
    if not reader.takes_pushdown:
        return None
    try:
        version = reader.version()
        with readers.lock:
            if relation.id in readers.versions and readers.versions[relation.id] == version:
                return None
        rows = reader.read(*_named_there(relation, part)).rename_columns([c.name for c in part.columns])
    except Error as err:
        with readers.lock:
            readers.problems[relation.id] = err
        raise
    with readers.lock:
        readers.problems.pop(relation.id)
    ranges = {c.name: relation.ranges[c.name] for c in part.columns if c.name in relation.ranges}
    check_rows(replace(relation, columns=part.columns, ranges=ranges), rows, None)
    return rows


def sent(session: Session, part: Pushdown) -> str | None:
    """The SQL text that `needed_rows` sends to the server; None if it sends none."""
    relation = session.catalog.relations[part.relation_id]
    assert isinstance(relation, ExternalTable)
    reader = session.database.external_readers.reader(relation.external)
    if not reader.takes_pushdown or relation.dictionary is not None or relation.primary_key:
        return None
    return reader.statement(*_named_there(relation, part))


def _named_there(relation: ExternalTable, part: Pushdown) -> tuple[Schema, list[Condition]]:
    named = relation.external.named
    conditions = [replace(c, column=named((c.column,))[0]) for c in part.conditions]
    return named(part.columns), conditions


def refresh_read(session: Session, relation_ids: Iterable[str]) -> bool:
    """Calls `refresh` for all external tables and dictionaries among the relations, including those that their plain
    views read.

    When it returns, views created by the open transaction reflect their inputs.
    """
    if session.database.read_only:
        return False
    known = session.catalog.relations
    todo = list(dict.fromkeys(relation_ids))
    _catch_up(session, todo)
    changed = False
    for relation_id in todo:
        relation = known.get(relation_id)
        if relation is None:
            continue
        if isinstance(relation, ExternalTable):
            changed |= reads_outside(session, relation) and refresh(session, relation)
        elif isinstance(relation, View):
            todo += [i for i in relation.depends_on if i not in todo]
    return changed


def _catch_up(session: Session, relation_ids: Iterable[str]) -> None:
    transaction = session.transaction
    if transaction is None or not transaction.definitions.made:
        return
    catalog = session.catalog
    read = catalog.upstream(relation_ids) & transaction.definitions.made
    if any(catalog.relations[i].is_fed_by_circuit for i in read):
        session.database.flush()


def _replace(session: Session, relation: Relation, rows: pa.Table) -> bool:
    """Makes `rows` the content. Of several rows with the same primary key, the last one counts."""
    if relation.dictionary is not None:
        rows = with_defaults(session, relation, rows)
    if isinstance(relation, AddressRanges):
        rows = address_ranges(relation, rows)
    check_rows(relation, rows, None)
    if relation.primary_key:
        rows = last_of_each_key(session, relation, rows)
    if relation.dictionary is not None:
        check_content(session, relation, rows)
    columns = ", ".join(quoted(c.name) for c in relation.columns)
    with session.database.guard:
        query = BatchQuery(
            f"SELECT {columns} FROM {quoted(relation.shown)}",
            relation.columns,
            session.catalog,
            depends_on=(relation.id,),
            exact=relation.columns,
        )
        old = fetch(session, query, newest=True)
        both = pa.concat_tables([old, rows.cast(arrow_schema(relation.columns, positional=False))])
        signs = np.concatenate([np.full(old.num_rows, -1, np.int64), np.ones(rows.num_rows, np.int64)])
        change = consolidated(Change(both, signs))
        if not change.table.num_rows:
            return False
        session.database.commit({relation.id: change})
        return True
