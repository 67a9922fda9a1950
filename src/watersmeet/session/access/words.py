"""Which relations a word of SQL stands for: in SHOW, SHOW CREATE, EXPLAIN ANALYZE, DROP and ALTER.

The kinds say so themselves (`catalog.words`); the session's dialect says what TABLES are, and which words it has.
"""

from __future__ import annotations

from watersmeet.catalog import FAMILIES, DropWord, Relation, one
from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.session.access.context import Session, error_at, undefined_relation


def is_listed(what: str, relation: Relation, semantics: Semantics) -> bool:
    """Whether `SHOW what` lists such a relation."""
    if what != "tables":
        return what == "relations" or what in relation.words.show
    if semantics.tables == "read":
        return relation.has_rows
    return what in relation.words.show and (semantics.tables != "plain" or "streams" not in relation.words.show)


def has_create(word: str, relation: Relation, semantics: Semantics) -> bool:
    """Whether `SHOW CREATE word` shows such a relation."""
    words = relation.words.show_create
    return word in words or (word == "table" and semantics.tables == "read" and "topic" in words)


def relation_of_kind(session: Session, statement: Statement, name: Name, kind: str, command: str) -> Relation:
    """The relation that a statement names behind the word of its kind; kind "": without that word.

    UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH; the hint of that says `command` and the right word.
    """
    relation = session.find(name)
    if relation is None:
        shown = [r for r in session.catalog.shown if r.is_named]
        names = [r.shown for r in shown if has_create(kind, r, session.semantics)] if kind else None
        raise undefined_relation(session.catalog, name, statement, kind or "relation", names)
    if kind and not has_create(kind, relation, session.semantics):
        raise error_at(
            statement,
            name.span,
            "CATALOG_TYPE_MISMATCH",
            f'"{relation.shown}" is {one(relation.what)}, not {one(kind)}',
            hint=f"Use {command} {relation.words.show_create[0].upper()}.",
        )
    return relation


def is_called(word: DropWord, relation: Relation) -> bool:
    """Whether DROP and ALTER call such a relation so."""
    return word in relation.words.drop


def used_instead(verb: str, relation: Relation, semantics: Semantics) -> tuple[str, str | None]:
    """What says `verb` of a relation in the session's dialect: (a hint, the word; None if the dialect has none)."""
    words = relation.words.drop
    found = [w for known in (semantics.own_words, FAMILIES) for w in words if w in known]
    if not found:
        return f"SET dialect = '{relation.dialect}': that has {verb} {words[0].upper()}", None
    return f"Use {verb} {found[0].upper()}", found[0]
