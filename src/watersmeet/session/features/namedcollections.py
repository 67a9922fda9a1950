"""CREATE NAMED COLLECTION, and the statements that name one.

Timeplus, "Named Collection".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from watersmeet.catalog import NamedCollection, Relation
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.definitions import add, may_create, new_relation
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import Cursor, read_setting
from watersmeet.errors import Span, did_you_mean, error
from watersmeet.session.handlers import handles
from watersmeet.system.secretvalues import revealed_options


@dataclass(frozen=True, kw_only=True)
class CreateNamedCollection(Create):
    """`CREATE NAMED COLLECTION name AS setting = value [[NOT] OVERRIDABLE], …`. settings, fixed: as in the catalog."""

    takes: ClassVar[str | None] = ADMIN

    makes: ClassVar[type[Relation]] = NamedCollection

    settings: Mapping[str, str]
    fixed: tuple[str, ...]


@reads("CREATE NAMED COLLECTION", own="named collection")
def read_named_collection(cursor: Cursor, base: dict[str, Any]) -> CreateNamedCollection:
    """The cursor stands behind COLLECTION. CONNECTOR_OPTION for a setting that is given twice."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    cursor.expect("AS")
    settings: dict[str, str] = {}
    fixed: list[str] = []
    while True:
        setting = read_setting(cursor, settings)
        if cursor.take("NOT", "OVERRIDABLE"):
            fixed.append(setting)
        else:
            cursor.take("OVERRIDABLE")
        if not cursor.take(","):
            break
    cursor.end()
    return CreateNamedCollection(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        settings=settings,
        fixed=tuple(fixed),
    )


_SETTING = "named_collection"


@handles(CreateNamedCollection)
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
