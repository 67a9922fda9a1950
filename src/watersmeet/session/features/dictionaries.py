"""CREATE DICTIONARY: the source, layout, keys and attributes of a dictionary.

Timeplus, "Dictionary", "Direct JOIN with Dictionary"; ClickHouse, "Dictionaries".
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from sqlglot import exp

from watersmeet.catalog import (
    AddressRanges,
    Dictionary,
    DictionaryTable,
    DictionaryView,
    Relation,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.circuit.operators import FOREVER_US
from watersmeet.database.assignment import default_values
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.timeplus.columns import key_names, read_columns
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_value, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.maintenance.refreshing import FIRST, LAST, NETWORK, PLACES
from watersmeet.session.externalcontent import Clause, columns_of, content_query, external_of, fill, stream_of
from watersmeet.session.features.external import OWN
from watersmeet.session.handlers import handles
from watersmeet.values.times import SECOND_US
from watersmeet.values.types import VARCHAR, Field, Schema, SqlType


@reads("CREATE DICTIONARY", own="dictionary")
def read_dictionary(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DICTIONARY (TP-45 to TP-48). The order of the clauses is free."""
    made = read_new_name(cursor, base)
    if not cursor.at("("):
        raise cursor.error(detail="The columns of the dictionary were expected here.")
    declared: dict[str, exp.Expression] = {}
    columns, ranges = read_columns(cursor, declared)
    key: tuple[Name, ...] = ()
    bounds: tuple[Name, ...] = ()
    source = layout = lifetime_s = None
    while not cursor.done:
        start = cursor.index
        if cursor.take("PRIMARY", "KEY"):
            key = key_names(cursor)
            while cursor.take(","):
                key = (*key, cursor.name())
        elif cursor.take("SOURCE"):
            source = _clause(cursor)
        elif cursor.take("LAYOUT"):
            layout = _clause(cursor)
        elif cursor.take("LIFETIME"):
            lifetime_s = _lifetime(cursor)
        elif cursor.take("RANGE"):
            bounds = _range(cursor)
        elif cursor.at("SETTINGS") or cursor.at("COMMENT"):
            cursor.index += 1
            span = span_of(cursor.tokens[start : cursor.index])
            raise not_supported(f"{cursor.tokens[start].text.upper()} of a dictionary", cursor.text, span)
        else:
            raise cursor.error()
    for word, found in (("PRIMARY KEY", key), ("SOURCE", source), ("LAYOUT", layout)):
        if not found:
            raise cursor.error(detail=f"A dictionary needs {word}.")
    assert source is not None
    assert layout is not None
    _check_names((*key, *bounds), [c.name for c in columns], cursor)
    for part in key:
        if part.name in declared:
            raise not_supported("DEFAULT of a column of the key", cursor.text, node_span(declared[part.name]))
    keys = tuple(k.name for k in key)
    return CreateDictionary(
        **made,
        primary_key=keys,
        ranges=ranges,
        columns=tuple(Field(c.name, c.type, c.nullable and c.name not in keys) for c in columns),
        source=source,
        layout=layout,
        lifetime_s=lifetime_s,
        bounds=bounds,
        declared=declared,
    )


#: Other names of options.
_SAME: Final = {"database": "db"}


def _clause(cursor: Cursor) -> Clause:
    """`(NAME(option value …))` or `(NAME)`."""
    cursor.expect("(")
    start = cursor.index
    name = cursor.name(reserved=True)
    options: dict[str, str] = {}
    if cursor.take("("):
        while not cursor.at(")"):
            option = cursor.name(reserved=True)
            if option.name.lower() in options:
                raise cursor.error_at(option.span, "CONNECTOR_OPTION", f'option "{option.name}" is given twice')
            nested = _NESTED.get(option.name.lower())
            if nested is not None and cursor.take("("):
                options |= nested(cursor)
                continue
            options[_SAME.get(option.name.lower(), option.name.lower())] = read_value(cursor)
            if cursor.at("("):
                raise not_supported("a call as the value of an option", cursor.text, option.span)
        cursor.expect(")")
    span = span_of(cursor.tokens[start : cursor.index])
    cursor.expect(")")
    kind = name.name.lower()
    return Clause(name=kind, options=options, span=span, own=kind == OWN and "host" not in options)


def _credentials(cursor: Cursor) -> dict[str, str]:
    """`USER 'u' PASSWORD 'p')`: names begin with `credentials.`."""
    options: dict[str, str] = {}
    while not cursor.take(")"):
        name = cursor.name(reserved=True).name.lower()
        options[f"credentials.{name}"] = read_value(cursor)
    return options


def _headers(cursor: Cursor) -> dict[str, str]:
    """`HEADER(NAME 'n' VALUE 'v') …)`: names begin with `headers.`."""
    options: dict[str, str] = {}
    while not cursor.take(")"):
        cursor.expect("HEADER", "(", "NAME")
        name = read_value(cursor)
        cursor.expect("VALUE")
        options[f"headers.{name}"] = read_value(cursor)
        cursor.expect(")")
    return options


#: The options of sources whose values are options themselves.
_NESTED: Final = {"credentials": _credentials, "headers": _headers}


def _range(cursor: Cursor) -> tuple[Name, Name]:
    """`(MIN first MAX last)`: the two columns that limit when a row is valid, both limits included."""
    cursor.expect("(")
    cursor.expect("MIN")
    first = cursor.name()
    cursor.expect("MAX")
    last = cursor.name()
    cursor.expect(")")
    return first, last


def _lifetime(cursor: Cursor) -> tuple[int, int]:
    """`(300)`, `(MIN 1 MAX 10)`: the minimum and maximum number of seconds."""
    cursor.expect("(")
    least = greatest = None
    while not cursor.at(")"):
        if cursor.take("MIN"):
            least = cursor.integer()
        else:
            cursor.take("MAX")
            greatest = cursor.integer()
    end = cursor.index
    cursor.expect(")")
    if greatest is None or (least is not None and least > greatest):
        raise cursor.error_at(
            span_of(cursor.tokens[end : end + 1]),
            "INVALID_PARAMETER",
            "LIFETIME has no maximum, or one below its minimum",
            hint="Write LIFETIME(MIN 1 MAX 10) or LIFETIME(10), in seconds.",
        )
    return (greatest if least is None else least), greatest


def _check_names(key: tuple[Name, ...], known: list[str], cursor: Cursor) -> None:
    for part in key:
        if part.name not in known:
            raise cursor.error_at(part.span, "UNDEFINED_COLUMN", f'column "{part.name}" named in key does not exist')
    if len({p.name for p in key}) < len(key):
        raise cursor.error_at(key[-1].span, "DUPLICATE_COLUMN", "a column appears twice in the primary key")


@dataclass(frozen=True, kw_only=True)
class CreateDictionary(CreateRelation):
    """`CREATE DICTIONARY name (columns) PRIMARY KEY … SOURCE(source) LAYOUT(layout) [LIFETIME(…)]`.

    lifetime_s: its minimum and maximum in seconds; (0, 0) means for ever, None that it is not given. bounds: the two
    columns of `RANGE(MIN first MAX last)`, which limit when a row is valid; empty without RANGE.
    """

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = DictionaryTable

    source: Clause
    layout: Clause
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lifetime_s: tuple[int, int] | None = None
    bounds: tuple[Name, ...] = ()


#: Options for Timeplus's storage, without effect in Watersmeet, by layout (without `complex_key_`).
_WHOLE: Final = {
    "flat": ("initial_array_size", "max_array_size"),
    "hashed": ("shards", "shard_load_queue_backlog", "max_load_factor"),
    "sparse_hashed": ("shards", "shard_load_queue_backlog", "max_load_factor"),
    "hashed_array": ("shards",),
    "ip_trie": ("access_to_key_from_attributes",),
    "range_hashed": ("range_lookup_strategy",),
}

_CACHES: Final = {
    "cache": (
        "size_in_cells",
        "max_update_queue_size",
        "update_queue_push_timeout_milliseconds",
        "query_wait_timeout_milliseconds",
        "max_threads_for_updates",
    ),
    "ssd_cache": ("block_size", "file_size", "read_buffer_size", "write_buffer_size", "path"),
    "hybrid_hash_cache": ("ttl", "path", "max_hot_key_count"),
}

_OTHERS: Final = {"direct": (), "mutable_cache": ("db", "stream", "update_from_source")}
_LACKING: Final = ("polygon", "regexp_tree")

#: The layout whose keys are networks of IP addresses.
_NETWORKS: Final = "ip_trie"

#: The clause's name in messages.
_SOURCE: Final = "the source of a dictionary"

#: Layouts that don't support keys of several columns.
_SINGLE: Final = ("flat", "ip_trie", "polygon", "regexp_tree")

#: Layouts that only Timeplus has; they accept any key.
_ANY_KEY: Final = ("mutable_cache", "hybrid_hash_cache")

#: The default of FLAT(MAX_ARRAY_SIZE n).
_FLAT_KEYS: Final = 500_000

_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


@handles(CreateDictionary)
def create_dictionary(session: Session, statement: CreateDictionary) -> Result:
    """A dictionary (TP-19, TP-44 to TP-48) of external content or a stream. Its layout determines how joins look up
    rows.
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE DICTIONARY")
    check_columns(statement.columns, statement)
    name = _layout(statement)
    _check_key(statement, name)
    key = (*statement.primary_key, *(b.name for b in statement.bounds[:1]))
    columns = tuple(replace(c, nullable=c.nullable and c.name not in key) for c in statement.columns)
    dictionary = replace(
        _answers(session, statement, name),
        defaults=_defaults(statement, columns),
        keys_below=_flat_keys(statement) if name == "flat" else None,
        bounds=tuple(b.name for b in statement.bounds),
        by_address=name == _NETWORKS,
    )
    needs = (dictionary.stream,) if dictionary.stream else ()
    source = statement.source
    if source.own:
        below = stream_of(session, statement, source)
        if dictionary.bounds or dictionary.by_address:
            raise not_supported(
                f"layout {statement.layout.name.upper()} over a relation of this database",
                statement.text,
                source.span,
                hint="Ranges of a stream are joined by a condition: ON s.k = r.k AND s.t >= r.first AND s.t <= r.last."
                if dictionary.bounds
                else None,
            )
        _check_columns_of(below, statement, source.span)
        shown = tuple(below.column(c.name) for c in columns)
        add(
            session,
            new_relation(
                session,
                statement,
                DictionaryView,
                shown,
                primary_key=key,
                depends_on=(below.id, *needs),
                dictionary=dictionary,
                query=content_query(below, shown),
            ),
        )
        return Result("CREATE DICTIONARY")
    with located(statement, source.span):
        external = external_of(session, source.name, dict(source.options), statement.name, "db")
    made = new_relation(
        session,
        statement,
        DictionaryTable,
        columns,
        primary_key=key,
        depends_on=needs,
        ranges=dict(statement.ranges),
        external=external,
        dictionary=dictionary,
    )
    with own_transaction(session):
        fill(session, statement, made, _SOURCE, source.span)
        if dictionary.by_address:
            fill(session, statement, _ranges(session, made), _SOURCE, source.span)
    return Result("CREATE DICTIONARY")


def _ranges(session: Session, made: DictionaryTable) -> AddressRanges:
    """The hidden table for look-ups in a dictionary of networks."""
    dictionary = replace(made.dictionary, by_address=False, bounds=(FIRST, LAST))
    return AddressRanges(
        session.catalog.new_id(AddressRanges),
        made.name,
        (*PLACES, *made.columns),
        primary_key=(NETWORK, FIRST),
        sql=made.sql,
        dialect=made.dialect,
        schema=made.schema,
        path=made.path,
        hidden=True,
        depends_on=(made.id,),
        ranges=made.ranges,
        external=made.external,
        dictionary=dictionary,
        owner=made.id,
        networks=made.primary_key,
    )


def _layout(statement: CreateDictionary) -> str:
    """The layout without `complex_key_`. Raises FEATURE_NOT_SUPPORTED, INVALID_PARAMETER, CONNECTOR_OPTION."""
    layout = statement.layout
    name = layout.name.removeprefix("complex_key_")
    known = {**_WHOLE, **_CACHES, **_OTHERS}
    if name in _LACKING:
        raise not_supported(
            f"layout {layout.name.upper()} of a dictionary",
            statement.text,
            layout.span,
            hint="Use a layout that looks up the whole key.",
        )
    if name not in known or (name != layout.name and name in _SINGLE):
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f'there is no dictionary layout "{layout.name}"',
            hint=did_you_mean(name, known),
        )
    for option in layout.options:
        if option not in known[name]:
            raise error_at(
                statement,
                layout.span,
                "CONNECTOR_OPTION",
                f'layout {layout.name.upper()} has no option "{option}"',
                hint=did_you_mean(option, known[name]),
            )
    return name


def _check_key(statement: CreateDictionary, name: str) -> None:
    """Raises INVALID_PARAMETER for a key, or RANGE, that the layout does not support; DATATYPE_MISMATCH for its type.


    name: the layout without `complex_key_`. ClickHouse, "Dictionary Key".
    """
    layout, shown = statement.layout, statement.layout.name.upper()
    if len(statement.primary_key) > 1 and name == layout.name and name not in _ANY_KEY:
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f"layout {shown} takes a key of one column",
            detail="The key is (" + ", ".join(statement.primary_key) + ").",
            hint=None if name in _SINGLE else f"Layout COMPLEX_KEY_{shown} takes several.",
        )
    types = {c.name: c.type for c in statement.columns}
    kind = types[statement.primary_key[0]]
    if name == "flat" and not _is_whole(kind):
        raise error_at(
            statement,
            layout.span,
            "DATATYPE_MISMATCH",
            f'layout FLAT takes a key of type uint64, and "{statement.primary_key[0]}" is {kind.sql}',
            hint="Layout COMPLEX_KEY_HASHED takes keys of any type.",
        )
    if name == _NETWORKS and kind != VARCHAR:
        raise error_at(
            statement,
            layout.span,
            "DATATYPE_MISMATCH",
            f'layout IP_TRIE takes a key of type string, and "{statement.primary_key[0]}" is {kind.sql}',
            hint="Keys are networks, such as 10.1.0.0/16 and 2001:db8::/32.",
        )
    if (name == "range_hashed") != bool(statement.bounds):
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f"layout {shown} has no RANGE" if statement.bounds else f"layout {shown} needs RANGE(MIN first MAX last)",
        )
    ends = {types[b.name] for b in statement.bounds}
    if statement.bounds and (len(ends) > 1 or not all(_is_ordered(e) for e in ends)):
        raise error_at(
            statement,
            statement.bounds[0].span,
            "DATATYPE_MISMATCH",
            "the columns of RANGE have to be of one type, a number, a date or a time",
            detail="They are " + " and ".join(types[b.name].sql for b in statement.bounds) + ".",
        )


def _is_whole(kind: SqlType) -> bool:
    return kind.is_integer or (kind.name == "numeric" and kind.scale == 0)


def _is_ordered(kind: SqlType) -> bool:
    return kind.is_numeric or kind.name in ("date", "timestamp", "timestamptz")


def _defaults(statement: CreateDictionary, columns: Schema) -> dict[str, str]:
    """For each attribute that is NOT NULL or has a DEFAULT, its value for missing keys."""
    declared = default_values(statement)
    return {
        c.name: default
        for c in columns
        if c.name not in (*statement.primary_key, *(b.name for b in statement.bounds))
        and (default := declared.get(c.name, None if c.nullable else type_default(c.type))) is not None
    }


def _flat_keys(statement: CreateDictionary) -> int:
    text = statement.layout.options.get("max_array_size", str(_FLAT_KEYS))
    if not text.isdecimal() or not int(text):
        raise error_at(
            statement,
            statement.layout.span,
            "CONNECTOR_OPTION",
            f'option max_array_size can\'t be "{text}"',
            hint="It is a number above 0.",
        )
    return int(text)


def _answers(session: Session, statement: CreateDictionary, name: str) -> Dictionary:
    """How long the dictionary reuses looked-up rows. name: the layout without `complex_key_`. Raises INVALID_PARAMETER,
    CATALOG_TYPE_MISMATCH.
    """
    layout = statement.layout
    if name == "mutable_cache":
        stream = stream_of(session, statement, layout)
        if stream.mode != "mutable":
            raise error_at(statement, layout.span, "CATALOG_TYPE_MISMATCH", f'"{stream.shown}" is not a mutable stream')
        _check_columns_of(stream, statement, layout.span)
        return Dictionary(stream=stream.id, fills=_truth(statement, layout, "update_from_source"))
    if name == "direct":
        return Dictionary()
    if name == "hybrid_hash_cache":
        return Dictionary(ttl_us=_seconds(statement, layout) * SECOND_US)
    if statement.lifetime_s is None and name in _CACHES:
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            f"layout {layout.name.upper()} needs LIFETIME",
            hint="Write LIFETIME(300), in seconds.",
        )
    least, greatest = statement.lifetime_s or (0, 0)
    if not greatest:
        return Dictionary(ttl_us=FOREVER_US)
    # Spreads the refreshes of dictionaries with the same lifetime. The spread depends only on the name, so it is the
    # same on every machine.
    spread_us = (greatest - least) * SECOND_US * zlib.crc32(statement.name.encode()) >> 32
    return Dictionary(ttl_us=max(least * SECOND_US + spread_us, 1))


def _seconds(statement: CreateDictionary, layout: Clause) -> int:
    text = layout.options.get("ttl", "")
    if not text.isdecimal() or not int(text):
        raise error_at(
            statement,
            layout.span,
            "INVALID_PARAMETER",
            "layout HYBRID_HASH_CACHE needs the option TTL, seconds above 0",
        )
    return int(text)


def _truth(statement: CreateDictionary, clause: Clause, name: str) -> bool:
    text = clause.options.get(name, "false").lower()
    if text not in _TRUTH:
        raise error_at(
            statement,
            clause.span,
            "CONNECTOR_OPTION",
            f'option {name} can\'t be "{text}"',
            hint="It must be true or false.",
        )
    return _TRUTH[text]


def _check_columns_of(below: Relation, statement: CreateDictionary, span: Span) -> None:
    """Checks that a stream has the dictionary's columns, and the dictionary's key as its primary key."""
    columns_of(below, statement.columns, statement, span)
    if not below.primary_key or set(below.primary_key) != set(statement.primary_key):
        raise error_at(
            statement,
            span,
            "CATALOG_TYPE_MISMATCH",
            f'the primary key of "{below.shown}" is not that of the dictionary',
            hint="A mutable stream with the dictionary's PRIMARY KEY has one row for each key.",
        )
