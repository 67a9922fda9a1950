"""Reads ALTER of Timeplus' streams and views; clauses that only concern storage have no effect.

Timeplus, "ALTER STREAM", "ALTER VIEW".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from watersmeet.dialects.statements import alter
from watersmeet.dialects.timeplus.columns import DIGITS, first_choice, key_names, only_default, read_column
from watersmeet.dialects.timeplus.storage import (
    FOUND,
    KEPT,
    SORTED,
    TUNING,
    TUNING_REASON,
    no_effect,
    settings_notices,
    take_column_clause,
)
from watersmeet.dialects.tree.definitions import Alter, AlterQuery, CreateIndex, Drop
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Accepted, Name, Refused, Statement, Unit
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_setting, span_of
from watersmeet.errors import Span
from watersmeet.values.types import Field


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads ALTER STREAM, ALTER VIEW and the like; the cursor stands after ALTER."""
    if cursor.at("NAMED", "COLLECTION"):
        span = span_of(cursor.tokens[: cursor.index + 2])
        hint = "Streams take its settings over when they are created: drop them, and create it and them again."
        return Refused(**base, error=not_supported("ALTER NAMED COLLECTION", cursor.text, span, hint=hint))
    changed = _read_clause(cursor, base)
    if changed is not None:
        return changed
    kinds = ("STREAM", "EXTERNAL", "DICTIONARY", "VIEW", "MATERIALIZED")
    clauses = (*alter.COMMON_CLAUSES, "ADD INDEX", "DROP INDEX", "MODIFY TTL", "MODIFY SETTING", "MODIFY QUERY SETTING")
    begin, texts = cursor.index, []
    for part in alter.parts_of(cursor):
        inner = cursor.over(part)
        inner.index = begin
        texts.append(_as_any_view(alter.read_alter(inner, base, _read_added, kinds, clauses)))
    return texts[0] if len(texts) == 1 else Unit(**base, statements=tuple(texts))


def _as_any_view(found: Statement) -> Statement:
    if isinstance(found, Alter) and found.kind in ("view", "materialized view"):
        return replace(found, kind="any view")
    return found


def _read_clause(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads the clauses of ALTER that concern settings, storage and indexes. For other statements it returns None and
    leaves the cursor.

    Timeplus, "ALTER STREAM", "ALTER VIEW".
    """
    begin = cursor.index
    kind = next((k for k in ("STREAM", "VIEW", "MATERIALIZED VIEW", "EXTERNAL STREAM") if cursor.take(*k.split())), "")
    if kind:
        if_exists = cursor.take("IF", "EXISTS")
        name = cursor.relation_name()
        about: dict[str, Any] = {"of": name, "if_exists": if_exists, "command": f"ALTER {kind}"}
        if (notices := _read_storage(cursor)) is not None:
            return Accepted(**base, **about, notices=tuple(notices))
        if cursor.take("MODIFY", "QUERY", "SETTING"):
            return _read_settings(cursor, base, about)
        if cursor.take("ADD", "INDEX"):
            return _read_index(cursor, base, name)
        if cursor.take("DROP", "INDEX"):
            index_exists = cursor.take("IF", "EXISTS")
            index = cursor.name(reserved=True)
            cursor.end()
            dropped = replace(index, name=f"{name.name}.{index.name}", schema=name.schema)
            return Drop(**base, kind="index", names=(dropped,), if_exists=if_exists or index_exists)
        if cursor.take("MODIFY", "QUERY"):
            return alter.read_redefined(cursor, {**base, "kind": "any view", "name": name, "if_exists": if_exists})
        for words, hint in _ALTERS_LACKING.items():
            if cursor.at(*words.split()):
                span = span_of(cursor.tokens[cursor.index : cursor.index + len(words.split())])
                return Refused(**base, error=not_supported(f"ALTER … {words}", cursor.text, span, hint=hint))
    cursor.index = begin
    return None


def _read_settings(cursor: Cursor, base: dict[str, Any], about: dict[str, Any]) -> Statement:
    """Reads `name = value, …` after MODIFY QUERY SETTING. Settings that never change a result only give a notice."""
    settings: dict[str, str] = {}
    spans: dict[str, Span] = {}
    while not settings or cursor.take(","):
        first = cursor.index
        setting = read_setting(cursor, settings)
        spans[setting] = span_of(cursor.tokens[first : cursor.index])
    cursor.end()
    tuning = [name for name in settings if name in TUNING]
    notices = tuple(no_effect(f"setting {name}", TUNING_REASON) for name in tuning)
    meant = {name: value for name, value in settings.items() if name not in tuning}
    if not meant:
        return Accepted(**base, **about, notices=notices)
    named = {"name": about["of"], "if_exists": about["if_exists"]}
    return AlterQuery(**base, kind="any view", **named, settings=meant, spans=spans, notices=notices)


def _read_index(cursor: Cursor, base: dict[str, Any], stream: Name) -> Statement:
    """Reads `[IF NOT EXISTS] name (columns) [STORING (columns)]` after ADD INDEX."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name(reserved=True)
    if cursor.at("UNIQUE"):
        raise not_supported("a unique index", cursor.text, span_of(cursor.rest[:1]))
    columns = key_names(cursor)
    storing = key_names(cursor) if cursor.take("STORING") else ()
    cursor.end()
    return CreateIndex(
        **base,
        name=f"{stream.name}.{name.name}",
        name_span=name.span,
        schema=stream.schema,
        if_not_exists=if_not_exists,
        table=stream,
        columns=tuple(c.name for c in columns),
        include=tuple(c.name for c in storing),
        distributed_by=(),
    )


#: Clauses of ALTER that Watersmeet lacks, each with the way round.
_ALTERS_LACKING: Final = {
    "DROP PARTITION": "DELETE FROM stream WHERE … deletes rows of a keyed stream.",
    "DELETE COLUMN": "Write DROP COLUMN.",
    "MODIFY COLUMN": "Create another stream, and INSERT INTO it SELECT … FROM table(stream).",
    "DELETE": "Write DELETE FROM stream WHERE ….",
    "UPDATE": "Write UPDATE stream SET … WHERE ….",
}


def _read_added(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    column = read_column(cursor, ())
    declared = only_default(cursor, column, "that is added")
    notices = list(column.notices)
    if cursor.take("FIRST") or (cursor.take("AFTER") and cursor.name(reserved=True)):
        notices.append(no_effect("the place of an added column", "it is the last one"))
    field, kind = column.field, column.kind
    default = first_choice(kind.choices) if kind.choices else type_default(field.type)
    default = None if field.nullable else default
    digits = kind.digits if kind.digits is not None and kind.digits < DIGITS else None
    limits = {"range": kind.range, "digits": digits}
    return field, {"default": default, "declared": declared, "notices": tuple(notices), **limits}


def _read_storage(cursor: Cursor) -> list[str] | None:
    """Reads the clause of ALTER after the relation's name to its end, if it only concerns storage or comments. Returns
    its notices; None, with the cursor unmoved, for others.
    """
    begin = cursor.index
    if cursor.take("MODIFY", "COMMENT") or cursor.take("COMMENT", "COLUMN"):
        cursor.until("")
        return []
    if cursor.take("MODIFY", "TTL") or cursor.take("REMOVE", "TTL"):
        cursor.until("")
        return [no_effect("TTL", KEPT)]
    if cursor.take("MODIFY", "SETTING"):
        notices = settings_notices(cursor)
        cursor.end()
        return notices
    if cursor.take("RESET", "SETTING") or cursor.take("RESET", "QUERY", "SETTING"):
        names = [span_of([t]) for t in cursor.until("") if t.text != ","]
        listed = ", ".join(cursor.text[s.start : s.end] for s in names)
        return [no_effect(f"RESET of {listed}", "Watersmeet does without the setting")]
    for words in (("MATERIALIZE", "INDEX"), ("CLEAR", "INDEX"), ("MODIFY", "ORDER", "BY")):
        if cursor.take(*words):
            cursor.until("")
            return [no_effect(" ".join(words), FOUND if words[1] == "INDEX" else SORTED)]
    if cursor.take("ADD", "INDEX"):
        if any(word.text.upper() == "TYPE" for word in cursor.until("")):
            return [no_effect("ADD INDEX", FOUND)]
    elif cursor.take("MODIFY", "COLUMN"):
        name = cursor.name(reserved=True)
        found = take_column_clause(cursor, name.name)
        if found is not None and cursor.done:
            return found
    cursor.index = begin
    return None
