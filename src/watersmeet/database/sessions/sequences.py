"""The numbers of sequences for sessions, and the functions of sequences in queries.

PostgreSQL 17, "CREATE SEQUENCE", 9.17 "Sequence Manipulation Functions". Numbers of a
transaction that is rolled back are skipped; RESTART in a transaction takes effect at COMMIT for other sessions.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Catalog, Input, NumberSequence, Relation
from watersmeet.catalog.roles import WRITER
from watersmeet.database.sessions.context import Session, denied, depended_on
from watersmeet.database.transaction import Row
from watersmeet.dialects.schemas import find_relation, relation_in_from
from watersmeet.dialects.tree.queries import is_holder, name_of, node_span
from watersmeet.dialects.tree.statements import Statement
from watersmeet.errors import Error, error
from watersmeet.store.sequences import Count, naming, saved_count


def take(session: Session, sequence_id: str, count: int) -> np.ndarray[Any, np.dtype[np.object_]]:
    """The next numbers of a sequence for a session. Raises SEQUENCE_LIMIT, WRITER_FENCED."""
    sequence = sequence_named(session.catalog, sequence_id)
    own = None if session.transaction is None else session.transaction.sequences.get(sequence_id)
    if session.transaction is not None and own is not None:
        with naming(sequence):
            found = own.next(sequence.numbers, count)
        session.transaction.sequences[sequence_id] = own.advanced(sequence.numbers, count)
    else:
        found = session.database.sequences.take(sequence, count)
    if count:
        session.sequence_values[sequence_id] = int(found[-1])
        session.last_sequence = sequence_id
    return found


def numbered_columns(relation: Relation, given: Container[str]) -> dict[int, tuple[str, int]] | None:
    """The columns of an INSERT that are numbers of sequences, by their places: the id of the sequence, and the greatest
    number of the column. None if the INSERT gives a column that is always generated.
    """
    bits = {"smallint": 15, "integer": 31, "bigint": 63}
    found = {}
    for place, column in enumerate(relation.columns):
        serial = relation.serials.get(column.name)
        if serial is not None and column.name not in given:
            found[place] = (serial.sequence, (1 << bits[column.type.name]) - 1)
        elif serial is not None and serial.identity == "always":
            return None
    return found


def with_numbers(session: Session, row: Row, numbered: Mapping[int, tuple[str, int]]) -> Row | None:
    """A row with numbers in the places of `numbered_columns`. None if a sequence has no further number: then the
    statement must raise its error.
    """
    made = [*row]
    for place, (sequence_id, greatest) in numbered.items():
        try:
            number = int(take(session, sequence_id, 1)[0])
        except Error:
            return None
        if not -greatest - 1 <= number <= greatest:
            return None
        made[place] = number
    return tuple(made)


def restart(session: Session, sequence: NumberSequence, count: Count) -> None:
    """Sets the state of a sequence; in a transaction, for others at its COMMIT."""
    if session.transaction is not None:
        session.transaction.sequences[sequence.id] = count
    else:
        session.database.sequences.put(sequence, count)


def count_of(session: Session, sequence: NumberSequence) -> Count:
    """The state of a sequence as the session sees it."""
    if session.transaction is not None and sequence.id in session.transaction.sequences:
        return session.transaction.sequences[sequence.id]
    if session.database.read_only:
        return saved_count(session.database.layout, sequence)
    return session.database.sequences.count(sequence.id)


def sequence_named(catalog: Catalog, sequence_id: str) -> NumberSequence:
    """The sequence with an id. Raises UNDEFINED_RELATION if it was dropped."""
    found = catalog.relations.get(sequence_id)
    if not isinstance(found, NumberSequence):
        raise error("UNDEFINED_RELATION", "the sequence of the column does not exist")
    return found


def owned_by(catalog: Catalog, table_ids: Iterable[str], column: str | None = None) -> list[NumberSequence]:
    """The sequences that are dropped with tables, or with a column, by its name in the stored data."""
    ids = {*table_ids}
    return [
        r
        for r in catalog.relations.values()
        if isinstance(r, NumberSequence) and r.owned[:1] and r.owned[0] in ids and column in (None, r.owned[1])
    ]


def users_of(catalog: Catalog, sequence_id: str) -> list[tuple[Relation, str]]:
    """The columns that take numbers of a sequence by default."""
    called = f"'{sequence_id}'"
    return [
        (r, c.name)
        for r in catalog.relations.values()
        for c in r.columns
        if (r.serials and c.name in r.serials and r.serials[c.name].sequence == sequence_id)
        or called in r.defaults.get(c.name, "")
    ]


def released(
    session: Session, found: Iterable[Relation], ids: set[str], statement: Statement, *, cascade: bool, verb: str
) -> set[str]:
    """The ids of the sequences that are dropped with the relations `ids`, of which `found` are named. Raises
    DEPENDENT_OBJECTS for an enum that columns have, and for a sequence that columns use unless `cascade` is set.
    """
    for relation in found:
        users = [r for r in session.catalog.with_enum(relation) if r.id not in ids]
        if users:
            raise depended_on(
                statement,
                statement.span,
                f"{verb} {relation.title}",
                (f"{r.reader} has a column of this type" for r in users),
                hint="Drop these first, also with CASCADE.",
            )
    sequences = {r.id for r in owned_by(session.catalog, ids)}
    for relation in [*found, *(session.catalog.relations[i] for i in sequences)]:
        if isinstance(relation, NumberSequence):
            _release(session, relation, statement, ids, cascade=cascade, verb=verb)
    return sequences


def _release(
    session: Session, sequence: NumberSequence, statement: Statement, ids: set[str], *, cascade: bool, verb: str
) -> None:
    """Takes the default from columns that use a sequence, except those of the relations `ids`. Raises
    DEPENDENT_OBJECTS without `cascade`.
    """
    users = [(r, column) for r, column in users_of(session.catalog, sequence.id) if r.id not in ids]
    if users and not cascade:
        raise depended_on(
            statement,
            statement.span,
            f"{verb} {sequence.title}",
            (f'default value for column "{column}" of {r.title} depends on it' for r, column in users),
            hint="Use DROP … CASCADE to drop the defaults, too.",
        )
    for user, column in users:
        session.notice(f'drop cascades to default value for column "{column}" of {user.title}')
        table = session.catalog.relations[user.id]
        assert isinstance(table, Input)
        serials = {n: s for n, s in table.serials.items() if n != column}
        defaults = {n: d for n, d in table.defaults.items() if n != column}
        session.put(replace(table, serials=serials, defaults=defaults))


#: A part of a name in a text: quoted, or to be folded.
_PART: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s]+))\s*(\.|$)')


def _parts(text: str) -> list[tuple[str, bool]]:
    """The parts of a name, and whether each is folded. Raises INVALID_NAME."""
    found, end = [], 0
    while end < len(text):
        match = _PART.match(text, end)
        if match is None:
            break
        found.append((match[1].replace('""', '"'), False) if match[1] else (match[2].lower(), True))
        end = match.end()
    if not found or end < len(text):
        raise error("INVALID_NAME", f'invalid name syntax: "{text}"')
    return found


def find_sequence(catalog: Catalog, text: str) -> NumberSequence:
    """The sequence of a text such as `schema.name`. Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH."""
    *schema, (name, folded) = _parts(text)
    found = find_relation(catalog, name, schema[-1][0] if schema else None, folded=folded)
    if found is None:
        raise error("UNDEFINED_RELATION", f'relation "{text}" does not exist')
    if not isinstance(found, NumberSequence):
        raise error("CATALOG_TYPE_MISMATCH", f'"{found.shown}" is not a sequence')
    return found


_FUNCTIONS: Final = ("nextval", "currval", "setval", "lastval", "pg_get_serial_sequence")
_NAMED: Final = re.compile("|".join(_FUNCTIONS), re.IGNORECASE)


def with_sequences(session: Session, tree: exp.Expression, text: str) -> exp.Expression:
    """The tree of a query with the ids of sequences in its calls of their functions, and with rows for sequences that
    it reads. Raises UNDEFINED_RELATION.
    """
    catalog = session.catalog
    calls = [n for n in tree.find_all(exp.Anonymous) if _called(n)] if _NAMED.search(text) else []
    has_any = any(isinstance(r, NumberSequence) for r in session.database.catalog.relations.values())
    has_any = has_any or session.transaction is not None
    tables = (
        [
            (t, r)
            for t in tree.find_all(exp.Table)
            if isinstance(t.this, exp.Identifier) and isinstance(r := relation_in_from(t, catalog), NumberSequence)
        ]
        if has_any
        else []
    )
    if not calls and not tables:
        return tree
    paths = [_path(node, tree) for node in (*calls, *(t for t, _ in tables))]
    tree = tree.copy()
    nodes = [_at(tree, path) for path in paths]
    for node in reversed(nodes[: len(calls)]):
        try:
            made = _bound(session, node)
        except Error as err:
            if err.span is None:
                err.sql, err.span = text, node_span(node)
            raise
        outer = node.parent if isinstance(node.parent, exp.Dot) else node
        if outer is tree:
            tree = made
        else:
            outer.replace(made)
    for node, (_, relation) in zip(nodes[len(calls) :], tables, strict=True):
        session.require("SELECT", relation, text)
        _replace_table(session, node, relation)
    return tree


def _called(node: exp.Anonymous) -> bool:
    if str(node.this).lower() not in _FUNCTIONS:
        return False
    return not isinstance(node.parent, exp.Dot) or node.parent.this.name.lower() == "pg_catalog"


def _path(node: exp.Expression, root: exp.Expression) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    while node is not root:
        found.append((node.arg_key, node.index))
        assert node.parent is not None
        node = node.parent
    return found[::-1]


def _at(root: exp.Expression, path: list[tuple[str, int | None]]) -> exp.Expression:
    for key, index in path:
        value = root.args[key]
        root = value if index is None else value[index]
    return root


def _text_of(node: exp.Expression) -> str | None:
    """The text of a constant name, perhaps cast to regclass; None for a parameter that has no value yet."""
    while isinstance(node, (exp.Cast, exp.Paren)):
        node = node.this
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.this)
    if is_holder(node) or isinstance(node, exp.Null):
        return None
    raise error(
        "FEATURE_NOT_SUPPORTED",
        "a sequence that is not a constant is not supported",
        hint="Write its name: nextval('name').",
    )


def _bound(session: Session, node: exp.Expression) -> exp.Expression:
    """The call of a function of sequences, with the id of the sequence."""
    name, arguments = str(node.this).lower(), node.expressions
    wanted = {"lastval": (0,), "setval": (2, 3), "pg_get_serial_sequence": (2,)}.get(name, (1,))
    if len(arguments) not in wanted:
        raise error("UNDEFINED_FUNCTION", f"function {name} with {len(arguments)} arguments does not exist")
    if name == "pg_get_serial_sequence":
        return _serial_sequence(session, *map(_text_of, arguments))
    if name in ("nextval", "setval"):
        session.require_definer(f"{name}()")
        if not session.rights.has(WRITER):
            raise denied(f"function {name}", None, detail=f"It takes the role {WRITER}.")
    given: list[exp.Expression] = []
    if name != "lastval":
        if isinstance(arguments[0], (exp.Cast, exp.Anonymous, exp.Dot)):
            arguments = [_folded(session, arguments[0]), *arguments[1:]]
        text = _text_of(arguments[0])
        if text is None:
            return exp.Cast(this=exp.null(), to=exp.DataType(this=exp.DataType.Type.BIGINT))
        given = [exp.Literal.string(find_sequence(session.catalog, text).id), *arguments[1:]]
    return exp.Anonymous(this=f"${name}", expressions=[g.copy() for g in given])


def _folded(session: Session, node: exp.Expression) -> exp.Expression:
    """The text that `pg_get_serial_sequence` returned as an argument."""
    while isinstance(node, (exp.Cast, exp.Paren)):
        node = node.this
    node = node.expression if isinstance(node, exp.Dot) else node
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "pg_get_serial_sequence":
        return _bound(session, node)
    return node


def _serial_sequence(session: Session, table: str | None, column: str | None) -> exp.Expression:
    """The name of the sequence that a column owns, as a text; NULL without one."""
    if table is None or column is None:
        return exp.Cast(this=exp.null(), to=exp.DataType(this=exp.DataType.Type.VARCHAR))
    *schema, (name, folded) = _parts(table)
    relation = find_relation(session.catalog, name, schema[-1][0] if schema else None, folded=folded)
    if relation is None:
        raise error("UNDEFINED_RELATION", f'relation "{table}" does not exist')
    if column not in [c.name for c in relation.columns]:
        message = f'column "{column}" of relation "{relation.name}" does not exist'
        raise error("UNDEFINED_COLUMN", message)
    found = owned_by(session.catalog, [relation.id], relation.stored.get(column, column))
    if not found:
        return exp.Cast(this=exp.null(), to=exp.DataType(this=exp.DataType.Type.VARCHAR))
    return exp.Literal.string(f"{_quoted(found[0].schema)}.{_quoted(found[0].name)}")


def _quoted(name: str) -> str:
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _replace_table(session: Session, node: exp.Expression, sequence: NumberSequence) -> None:
    """Puts a row with the state of a sequence in the place of its name in FROM."""
    count, big = count_of(session, sequence), exp.DataType(this=exp.DataType.Type.BIGINT)
    number = exp.Literal.string(str(count.last))
    values = {
        "last_value": exp.Cast(this=number, to=big),
        "log_cnt": exp.Cast(this=exp.Literal.string("0"), to=big.copy()),
        "is_called": exp.Boolean(this=count.called),
    }
    row = exp.select(*(exp.alias_(value, name, quoted=True) for name, value in values.items()))
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name_of(node.this), quoted=True))
    node.replace(exp.Subquery(this=row, alias=alias.copy()))


#: The calls of `expressions.functions` in DuckDB's SQL.
_CALLS: Final = re.compile(r"\bwatersmeet_(nextval|setval|currval|lastval)\b", re.IGNORECASE)
_numbers: Final = itertools.count()


def calls_sequences(sql: str) -> bool:
    """Whether DuckDB's SQL calls functions of sequences."""
    return _CALLS.search(sql) is not None


@contextlib.contextmanager
def sequence_functions(session: Session, connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[str]:
    """Inside the block, DuckDB knows the functions of sequences in the SQL that this yields. Raises their errors."""
    failures: list[Error] = []

    def kept(function: Callable[..., pa.Array], width: int) -> Callable[..., pa.Array]:
        def call(*columns: Any) -> pa.Array:
            try:
                return function(*columns)
            except Error as err:
                failures.append(err)
                raise

        places = [inspect.Parameter(f"a{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(width)]
        call.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined] # which DuckDB reads
        return call

    made = {m[1].lower(): f"watersmeet_{m[1].lower()}_{next(_numbers)}" for m in _CALLS.finditer(sql)}
    text, number = duckdb.sqltype("VARCHAR"), duckdb.sqltype("BIGINT")
    truth, real = duckdb.sqltype("BOOLEAN"), duckdb.sqltype("DOUBLE")
    known: dict[str, tuple[Callable[..., pa.Array], list[Any]]] = {
        "nextval": (lambda ids, _: _next_values(session, ids), [text, real]),
        "currval": (lambda ids, _: _current(session, ids), [text, real]),
        "lastval": (lambda rows: _last(session, len(rows)), [real]),
        "setval": (lambda ids, values, called: _set_values(session, ids, values, called), [text, number, truth]),
    }
    try:
        for name, function in made.items():
            called, kinds = known[name]
            wrapped = kept(called, len(kinds))
            connection.create_function(function, wrapped, kinds, number, type="arrow", side_effects=True)
        yield _CALLS.sub(lambda m: made[m[1].lower()], sql)
    except duckdb.Error:
        if failures:
            raise failures[0] from None
        raise
    finally:
        for function in made.values():
            with contextlib.suppress(duckdb.Error):
                connection.remove_function(function)


def _next_values(session: Session, ids: Any) -> pa.Array:
    return pa.array(take(session, ids[0].as_py(), len(ids)) if len(ids) else [], pa.int64())


def _current(session: Session, ids: Any) -> pa.Array:
    sequence = sequence_named(session.catalog, ids[0].as_py())
    value = session.sequence_values.get(sequence.id)
    if value is None:
        message = f'currval of sequence "{sequence.name}" is not yet defined in this session'
        raise error("SEQUENCE_UNUSED", message)
    return pa.array([value] * len(ids), pa.int64())


def _last(session: Session, rows: int) -> pa.Array:
    value = session.sequence_values.get(session.last_sequence)
    if value is None or session.last_sequence not in session.catalog.relations:
        raise error("SEQUENCE_UNUSED", "lastval is not yet defined in this session")
    return pa.array([value] * rows, pa.int64())


def _set_values(session: Session, ids: Any, values: Any, called: Any) -> pa.Array:
    for sequence_id, value, is_called in zip(ids.to_pylist(), values.to_pylist(), called.to_pylist(), strict=True):
        if None in (sequence_id, value, is_called):
            continue
        sequence = sequence_named(session.catalog, sequence_id)
        least, greatest = sequence.numbers.bounds
        if not least <= value <= greatest:
            message = f'setval: value {value} is out of bounds for sequence "{sequence.name}" ({least}..{greatest})'
            raise error("VALUE_OUT_OF_RANGE", message)
        if session.transaction is not None and sequence_id in session.transaction.sequences:
            session.transaction.sequences[sequence_id] = Count(value, is_called)
        else:
            session.database.sequences.put(sequence, Count(value, is_called))
        if is_called:
            session.sequence_values[sequence_id] = value
    return values


def put_back(session: Session, sequences: dict[str, Count]) -> None:
    """Makes the states that a transaction has set those of all sessions, after its commit."""
    for sequence_id, count in sequences.items():
        found = session.database.catalog.relations.get(sequence_id)
        if isinstance(found, NumberSequence):
            session.database.sequences.put(found, count)


def default_sequence(session: Session, node: exp.Expression, text: str) -> NumberSequence | None:
    """The sequence of a DEFAULT that is only `nextval('name')`; None for others. text: the statement that errors
    show.
    """
    node = node.expression if isinstance(node, exp.Dot) and node.this.name.lower() == "pg_catalog" else node
    if not isinstance(node, exp.Anonymous) or str(node.this).lower() != "nextval" or len(node.expressions) != 1:
        return None
    try:
        name = _text_of(node.expressions[0])
        return None if name is None else find_sequence(session.catalog, name)
    except Error as err:
        err.sql, err.span = text, node_span(node.expressions[0])
        raise
