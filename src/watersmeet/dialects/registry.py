"""A dialect: its grammar, its readers of statements and its defaults; all dialects by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.catalog import COMMON_SCHEMA
from watersmeet.dialects import risingwave as functions
from watersmeet.dialects import variables
from watersmeet.dialects.lenses import ddl as lenses
from watersmeet.dialects.lenses.ddl import goes_on, read_insert
from watersmeet.dialects.lenses.grammar import WatersmeetLenses
from watersmeet.dialects.risingwave import WatersmeetRisingWave
from watersmeet.dialects.semantics import LENSES, RISINGWAVE, SQLSTREAM, TIMEPLUS, Semantics
from watersmeet.dialects.sqlstream import ddl as sqlstream
from watersmeet.dialects.sqlstream.ddl import read_merge
from watersmeet.dialects.sqlstream.grammar import WatersmeetSqlstream
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.statements.alter import read_alter, read_rename
from watersmeet.dialects.timeplus import ddl as timeplus
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.timeplus.ddl import CODES, read_subscription
from watersmeet.dialects.timeplus.grammar import WatersmeetTimeplus
from watersmeet.dialects.tree.queries import Parameters
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.dialects.variables import LENSES as LENSES_VARIABLES
from watersmeet.dialects.variables import Variable
from watersmeet.errors import did_you_mean, error
from watersmeet.values.types import Schema


def _no_insert(cursor: Cursor, dialect: Dialect, base: dict[str, Any], parameters: Parameters) -> Statement | None:  # noqa: ARG001 - the signature of all
    return None


def _never(tokens: Sequence[Token]) -> bool:  # noqa: ARG001 - the signature of all
    return False


@dataclass(frozen=True)
class Language:
    """A dialect.

    create, drop: read what follows CREATE and DROP. insert: reads an INSERT that makes something that runs; None for
    one that only writes rows. merge: reads MERGE. goes_on: tells a statement that belongs to those behind its
    semicolon: `WITH name AS (…);`. stop, start, alter, rename: read what follows these words. subscription: reads what
    follows SUBSCRIBE, RECOVER or UNSUBSCRIBE. codes: its numbers of errors, by condition. variables: its session
    variables. columns: reads `(name type, …)` of what is outside, and which numbers columns take whose types take more.
    """

    name: str
    syntax: type[Dialect]
    semantics: Semantics
    create: Callable[[Cursor, Dialect, dict[str, Any]], Statement] = ddl.read_create
    drop: Callable[[Cursor, dict[str, Any]], Statement] = ddl.read_drop
    insert: Callable[[Cursor, Dialect, dict[str, Any], Parameters], Statement | None] = _no_insert
    goes_on: Callable[[Sequence[Token]], bool] = _never
    stop: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    start: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    alter: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    subscription: Callable[[str, Cursor, Dialect, dict[str, Any]], Statement] | None = None
    rename: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    codes: Mapping[str, int] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    columns: Callable[[Cursor], tuple[Schema, Mapping[str, tuple[int, int]]]] | None = None
    merge: Callable[[Cursor, Dialect, dict[str, Any], Parameters], Statement] | None = None

    @cached_property
    def grammar(self) -> Dialect:
        """The grammar of its queries."""
        return self.syntax()


_LANGUAGES: Final[dict[str, Language]] = {
    "risingwave": Language(
        "risingwave",
        WatersmeetRisingWave,
        RISINGWAVE,
        functions.read_create,
        functions.read_drop,
        alter=read_alter,
        variables=variables.RISINGWAVE,
    ),
    "lenses": Language(
        "lenses",
        WatersmeetLenses,
        LENSES,
        lenses.read_create,
        lenses.read_drop,
        read_insert,
        goes_on,
        lenses.read_stop,
        lenses.read_start,
        variables=LENSES_VARIABLES,
    ),
    "sqlstream": Language(
        "sqlstream",
        WatersmeetSqlstream,
        SQLSTREAM,
        sqlstream.read_create,
        sqlstream.read_drop,
        alter=sqlstream.read_alter,
        merge=read_merge,
    ),
    "timeplus": Language(
        "timeplus",
        WatersmeetTimeplus,
        TIMEPLUS,
        timeplus.read_create,
        timeplus.read_drop,
        alter=timeplus.read_alter,
        rename=read_rename,
        subscription=read_subscription,
        codes=CODES,
        columns=read_columns,
    ),
}

#: All names of the schema that is always there.
COMMON_NAMES: Final = tuple(
    dict.fromkeys([COMMON_SCHEMA, *(language.semantics.schema for language in _LANGUAGES.values())])
)


def register(language: Language) -> None:
    """Adds a dialect. INVALID_PARAMETER for a name that another one has."""
    if _LANGUAGES.setdefault(language.name, language) is not language:
        raise error("INVALID_PARAMETER", f'there is a dialect "{language.name}" already')


def registered() -> tuple[str, ...]:
    """The names of all dialects."""
    return tuple(_LANGUAGES)


def language_named(name: str) -> Language:
    """The dialect; INVALID_PARAMETER for an unknown name."""
    if name in _LANGUAGES:
        return _LANGUAGES[name]
    raise error(
        "INVALID_PARAMETER",
        f'unknown dialect "{name}"',
        hint=did_you_mean(name, _LANGUAGES) or "The dialects are: " + ", ".join(_LANGUAGES) + ".",
    )
