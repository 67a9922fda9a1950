"""Relations that the circuit feeds: into the catalog, into the circuit, filled, ready; or out of both."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import Relation
from watersmeet.circuit.operators import Operator
from watersmeet.errors import Error
from watersmeet.session.context import Session


def fill(session: Session, relation: Relation, operators: Sequence[Operator]) -> None:
    """Make a relation that `operators` keep up to date; returns when it shows its inputs' content.

    If that fails, nothing of it is left. Other statements go on meanwhile, except those that change the catalog.
    """
    database = session.database
    relation = replace(relation, ready=False, append_only=operators[-1].append_only)
    database.plans.add(relation.id, operators)
    try:
        with database.guard:
            database.change_catalog(session.catalog.with_relation(relation))
        database.engine.install(database.plans.circuit, (relation.id,))
        with database.guard:
            database.change_catalog(session.catalog.with_relation(replace(relation, ready=True)))
    except BaseException:
        _undo(session, relation)
        raise


def _undo(session: Session, relation: Relation) -> None:
    """Take a relation that could not be filled out of everything."""
    database = session.database
    stored = True
    with database.guard:
        if relation.id in session.catalog.relations:
            stored = database.forget({relation.id})
    with contextlib.suppress(Error):  # why the relation could not be filled says more than that the engine stands still
        _take_out(session, {relation.id}, stored=stored)


def install_remaining(session: Session, gone: set[str]) -> None:
    """Let the circuit run without the relations `gone`, which the catalog has no more. They are gone in any case."""
    try:
        _take_out(session, gone, stored=True)
    except Error as err:
        session.notice(f"the views go on with the plan that they had: {err.message}")


def _take_out(session: Session, gone: set[str], *, stored: bool) -> None:
    database = session.database
    if database.plans.producers.keys() & gone:
        database.plans.remove(gone, stored=stored)
        database.reinstall()
