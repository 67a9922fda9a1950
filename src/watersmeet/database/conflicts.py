"""Transactions beside each other: the first to commit wins."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Catalog, Relation
from watersmeet.catalog.roles import PutRole
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Definitions, Transaction
from watersmeet.errors import Error, error


def check_writers(session: Session, transaction: Transaction) -> None:
    """SERIALIZATION_FAILURE if a table was changed meanwhile whose rows the transaction deletes, or replaces by key: it
    would delete rows that are no longer there. The first to commit wins.
    """
    known, log = session.database.catalog.relations, session.database.log
    wanted = {
        i: number
        for i, number in transaction.begun.items()
        if i not in transaction.definitions.made
        and (known[i].primary_key or any(c.diff is not None for c in transaction.changes.get(i, ())))
    }
    for number in range(min(wanted.values(), default=log.head()) + 1, log.head() + 1):
        for relation_id in log.read(number).relations.keys() & wanted.keys():
            if number > wanted[relation_id]:
                raise _concurrent(f"{known[relation_id].title} was changed since the transaction changed it.")


def check_definitions(transaction: Transaction, catalog: Catalog) -> None:
    """Refuses to commit definitions that do not fit those that others have committed since. catalog: what all see.

    DUPLICATE_OBJECT for a name that is taken, DEPENDENT_OBJECTS for what others have made of what is dropped,
    SERIALIZATION_FAILURE for what others have altered.
    """
    definitions = transaction.definitions
    seen = definitions.seen(catalog)
    for relation_id, before in definitions.relations_before.items():
        now = catalog.relations.get(relation_id)
        if relation_id not in definitions.dropped and (now is None or not _alike(now, before)):
            raise _changed(before.title)
    for function_id, function in definitions.functions_before.items():
        if catalog.functions.get(function_id) != function:
            raise _changed(f'function "{definitions.functions[function_id].name}"')
    others = (f for i, f in catalog.functions.items() if i not in definitions.functions and not f.dropped)
    functions = {(f.schema, f.name) for f in others}
    for made in definitions.functions.values():
        if (made.schema, made.name) in functions and not made.dropped:
            raise _taken(f'function "{made.name}"')
    _check_names(definitions, catalog, seen)
    for relation in seen.relations.values():
        if relation.schema in definitions.schemas_dropped and not relation.hidden:
            raise _dependent(relation, f'schema "{relation.schema}"')
        own = relation.id in definitions.made or relation.id in definitions.there
        if not own and not definitions.dropped.isdisjoint(relation.depends_on):
            gone = next(i for i in relation.depends_on if i in definitions.dropped)
            raise _dependent(relation, catalog.relations[gone].title if gone in catalog.relations else "a relation")


def _alike(one: Relation, other: Relation) -> bool:
    """Whether two relations of one id are defined alike, whatever of their content is there."""
    return replace(one, ready=other.ready, since=other.since, hidden=other.hidden, staged=other.staged) == other


def _check_names(definitions: Definitions, catalog: Catalog, seen: Catalog) -> None:
    """DUPLICATE_OBJECT."""
    before = definitions.roles_before
    if before is not None:
        for change in definitions.roles:
            if not isinstance(change, PutRole) or not change.makes or change.name in before:
                continue
            if change.name in catalog.roles:
                raise _taken(f'role "{change.name}"')
    touched = definitions.made | definitions.altered.keys()
    named = {i: r for i, r in seen.relations.items() if r.is_named}
    others = {r.shown.lower(): r for i, r in named.items() if i not in touched}
    for relation_id in touched & named.keys():
        other = others.get(named[relation_id].shown.lower())
        if other is not None:
            raise _taken(other.title)


def _taken(what: str) -> Error:
    return error(
        "DUPLICATE_OBJECT",
        f"{what} already exists",
        detail="It was made since the transaction chose that name. Nothing of the transaction was done.",
    )


def _dependent(relation: Relation, what: str) -> Error:
    return error(
        "DEPENDENT_OBJECTS",
        f"cannot drop {what} because other objects depend on it",
        detail=f"{relation.title[:1].upper()}{relation.title[1:]} was made since. Nothing of the transaction was done.",
    )


def _changed(what: str) -> Error:
    return _concurrent(f"{what[:1].upper()}{what[1:]} was altered, or dropped, since the transaction altered it.")


def _concurrent(detail: str) -> Error:
    return error(
        "SERIALIZATION_FAILURE",
        "could not serialize access due to concurrent update",
        detail=detail,
        hint="Nothing of the transaction was done. Run it again.",
    )
