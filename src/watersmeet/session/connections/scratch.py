"""Scratch databases, in which scripts are checked: empty, or with a copy of the objects of a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from watersmeet.catalog import Input, Relation, Sink
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.rebuild import plans_made_anew
from watersmeet.session.clauses import without_connector
from watersmeet.store.positions import create_secret, secret_names


@contextmanager
def scratch_database(objects_of: OpenDatabase | None = None) -> Iterator[OpenDatabase]:
    """An empty database in this process, or one with the objects of another database, without rows and connectors."""
    with closing(
        OpenDatabase(
            None,
            read_only=False,
            parallelism=1,
            runtime="inprocess",
            spark=None,
            rebuild=False,
            tick_seconds=1.0,
            permissions="private",
            files=objects_of is None or objects_of.files,
        )
    ) as database:
        if objects_of is not None:
            _copy_objects(objects_of, database)
        yield database


def _copy_objects(existing: OpenDatabase, database: OpenDatabase) -> None:
    """Gives an empty database the objects of another one: relations, functions, roles, and the names of secrets.

    Queries that run and views that are still being filled are left out. Views are planned again, without their state.
    """
    known = existing.catalog.relations.values()
    left_out = {r.id for r in known if (r.hidden and not r.owner) or not r.ready}
    catalog = existing.catalog.without(left_out)
    relations = {i: _unconnected(r) for i, r in catalog.relations.items()}
    database.change_catalog(replace(catalog, relations=relations))
    database.plans.replace_all(plans_made_anew(database.catalog), database.buckets)
    database.circuit.reinstall()
    for name in secret_names(existing.layout):
        create_secret(database.layout, name, "")


def _unconnected(relation: Relation) -> Relation:
    """The relation without its connector; a sink without connector delivers nothing."""
    if isinstance(relation, Sink):
        return replace(relation, connector={"connector": "blackhole"})
    return without_connector(relation) if isinstance(relation, Input) and relation.connector else relation
