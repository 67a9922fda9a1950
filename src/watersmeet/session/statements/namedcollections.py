"""CREATE NAMED COLLECTION, and what names one.

Timeplus, "Named Collection".
"""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.catalog import NamedCollection
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.namedcollections import CreateNamedCollection
from watersmeet.dialects.tree.statements import Name
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.secretvalues import revealed_options

_SETTING = "named_collection"


def create_named_collection(session: Session, statement: CreateNamedCollection) -> Result:
    """CREATE NAMED COLLECTION. What its settings mean is checked where one is named."""
    if may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        settings, fixed = dict(statement.settings), statement.fixed
        add(session, new_relation(session, statement, NamedCollection, (), settings=settings, fixed=fixed))
    return Result("CREATE NAMED COLLECTION")


def with_named_collection(session: Session, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings of a statement with those of the collection that it names, and the ids of what it depends on.

    UNDEFINED_OBJECT; CONNECTOR_OPTION for a setting that can't be overridden.
    """
    settings = dict(given)
    name = settings.pop(_SETTING, None)
    if name is None:
        return settings, ()
    found = session.find(Name(name, Span(0, 0)))
    if not isinstance(found, NamedCollection):
        known = [r.name for r in session.catalog.relations.values() if isinstance(r, NamedCollection)]
        raise error(
            "UNDEFINED_OBJECT",
            f'named collection "{name}" does not exist',
            hint=did_you_mean(name, known) or "Create it first: CREATE NAMED COLLECTION name AS setting = '…', ….",
        )
    for setting in found.fixed:
        if setting in settings:
            raise error(
                "CONNECTOR_OPTION",
                f'setting "{setting}" of {found.title} can\'t be overridden',
                hint="Leave it out here.",
            )
    return {**revealed_options(found.settings), **settings}, (found.id,)
