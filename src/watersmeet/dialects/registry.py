"""The registry of dialects. A dialect has a grammar, readers of statements and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.catalog import COMMON_SCHEMA, DropWord
from watersmeet.dialects import variables
from watersmeet.dialects.lenses import ddl as lenses
from watersmeet.dialects.lenses import settings as lenses_settings
from watersmeet.dialects.lenses.functions import FAMILIES
from watersmeet.dialects.lenses.grammar import WatersmeetLenses
from watersmeet.dialects.risingwave import accepted as clusters
from watersmeet.dialects.risingwave import grammar as risingwave
from watersmeet.dialects.semantics import LENSES, RISINGWAVE, SQLSTREAM, TIMEPLUS, Semantics
from watersmeet.dialects.sqlstream import accepted
from watersmeet.dialects.sqlstream import ddl as sqlstream
from watersmeet.dialects.sqlstream.grammar import WatersmeetSqlstream
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.statements.alter import read_alter, read_rename
from watersmeet.dialects.statements.utility import read_use
from watersmeet.dialects.timeplus import accepted as timeplus_accepted
from watersmeet.dialects.timeplus import ddl as timeplus
from watersmeet.dialects.timeplus.altering import read_alter as read_stream_alter
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.timeplus.grammar import WatersmeetTimeplus
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.dialects.variables import Variable
from watersmeet.errors import did_you_mean, error
from watersmeet.values.types import Schema

#: Reads a statement; the cursor stands after the first word. It returns None for a statement of all dialects.
OwnReader = Callable[[Cursor, dict[str, Any]], Statement | None]


@dataclass(frozen=True)
class Language:
    """The parts of a dialect.

    creates: readers of CREATE, by the words after it. drops: the kinds of relations that DROP accepts, or readers, by
    words. lacking: statements of its system that Watersmeet does not support (`statements.ddl.Lacking`). readers:
    readers of its own statements, by the first word; the cursor stands after that word, but at INSERT and MERGE. alter:
    reads ALTER of relations. goes_on: recognizes a statement that continues after its semicolon: `WITH name AS (…);`.
    codes: its error numbers, by condition. variables: its session variables. columns: reads `(name type, …)` of
    external tables, with the ranges of columns that are narrower than their types. words: keywords of its queries that
    standard SQL lacks, for completion.
    command, command_sign: reads a line `!word …` between statements, a command of its client; the sign before the
    word. catalog: its name of the database,
    with which a name of three parts may begin. functions: the names of the functions of its reference, separated by
    spaces, by family.

    A variant of a dialect has another name, and other defaults of session variables. base: the name of that dialect;
    empty for a dialect. defaults: the defaults that differ. custom: whether SET of any name with a dot makes a variable
    (PostgreSQL, "Customized Options").
    """

    name: str
    syntax: type[Dialect]
    semantics: Semantics
    creates: Mapping[str, ddl.Reader] = field(default_factory=lambda: ddl.CREATES)
    drops: Mapping[str, DropWord | ddl.Reader] = field(default_factory=lambda: ddl.DROPS)
    lacking: ddl.Lacking = field(default_factory=lambda: ddl.LACKING)
    readers: Mapping[str, OwnReader] = field(default_factory=dict)
    alter: ddl.Reader | None = None
    goes_on: Callable[[Sequence[Token]], bool] = lambda _: False
    codes: Mapping[str, int] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    columns: Callable[[Cursor], tuple[Schema, Mapping[str, tuple[int, int]]]] | None = None
    words: tuple[str, ...] = ()
    command: Callable[[dict[str, Any]], Statement] | None = None
    command_sign: str = ""
    catalog: str = ""
    functions: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    custom: bool = False

    @cached_property
    def grammar(self) -> Dialect:
        """The grammar of its queries."""
        return self.syntax()


_LANGUAGES: Final[dict[str, Language]] = {
    "risingwave": Language(
        "risingwave",
        risingwave.WatersmeetRisingWave,
        RISINGWAVE,
        words=(
            "ASOF",
            "EMIT ON WINDOW CLOSE",
            "ENCODE",
            "FOR SYSTEM_TIME AS OF PROCTIME()",
            "FORMAT",
            "HOP",
            "TUMBLE",
            "WATERMARK FOR",
        ),
        creates=risingwave.CREATES,
        lacking=risingwave.LACKING,
        alter=read_alter,
        drops=risingwave.DROPS,
        readers={
            "ALTER": clusters.read_alter,
            "ANALYZE": clusters.read_analyze,
            "BACKUP": clusters.read_backup,
            "CANCEL": clusters.read_cancel,
            "DELETE": clusters.read_deleted_backup,
            "DESCRIBE": clusters.read_describe,
            "KILL": clusters.read_kill,
            "MERGE": clusters.read_rows_merge,
            "REASSIGN": clusters.read_owned,
            "RECOVER": clusters.read_recover,
            "REFRESH": clusters.read_refresh,
            "SELECT": ddl.read_select_into,
            "VACUUM": clusters.read_vacuum,
            "SET": clusters.read_set,
            "USE": clusters.read_use,
        },
        variables=variables.RISINGWAVE,
        command=clusters.read_command,
        command_sign="\\",
        catalog="DEV",
    ),
    "lenses": Language(
        "lenses",
        WatersmeetLenses,
        LENSES,
        words=("HOP BY", "SESSION BY", "STREAM", "TUMBLE BY", "WITHIN"),
        creates=lenses.CREATES,
        drops=lenses.DROPS,
        lacking=lenses.LACKING,
        alter=lenses.read_alter,
        readers={
            "INSERT": lenses.read_insert,
            "SET": lenses_settings.read_set,
            "SHOW": lenses.read_show,
            "START": lenses.read_start,
            "STOP": lenses.read_stop,
            "USE": lenses.read_use,
        },
        goes_on=lenses.goes_on,
        variables=lenses_settings.VARIABLES,
        functions=FAMILIES,
    ),
    "sqlstream": Language(
        "sqlstream",
        WatersmeetSqlstream,
        SQLSTREAM,
        words=("FOLLOWING", "PRECEDING", "RANGE", "ROWS", "ROWTIME", "STREAM", "WINDOW"),
        creates=sqlstream.CREATES,
        drops=sqlstream.DROPS,
        lacking=sqlstream.LACKING,
        readers={
            "ALTER": accepted.read_alter,
            "ANALYZE": accepted.read_statistics,
            "CALL": accepted.read_call,
            "CHECKPOINT": accepted.read_checkpoint,
            "EXPLAIN": accepted.read_explain,
            "IMPORT": accepted.read_import,
            "INSERT": sqlstream.read_insert,
            "MERGE": sqlstream.read_merge,
            "SET": accepted.read_set,
        },
        alter=sqlstream.read_alter,
        variables=variables.SQLSTREAM,
        command=accepted.read_command,
        command_sign="!",
        catalog=accepted.CATALOG,
    ),
    "timeplus": Language(
        "timeplus",
        WatersmeetTimeplus,
        TIMEPLUS,
        words=(
            "ASOF",
            "ANY",
            "EMIT CHANGELOG",
            "EMIT PERIODIC",
            "LATEST",
            "PREWHERE",
            "SETTINGS",
            "TABLE",
            "VERSIONED_KV",
        ),
        creates=timeplus.CREATES,
        drops=timeplus.DROPS,
        lacking=timeplus.LACKING,
        readers={
            **timeplus_accepted.READERS,
            **dict.fromkeys(("RECOVER", "SUBSCRIBE", "UNSUBSCRIBE"), timeplus.read_subscription),
            "RENAME": read_rename,
            "USE": read_use,
        },
        alter=read_stream_alter,
        codes=timeplus.CODES,
        columns=read_columns,
    ),
}
_VARIANTS: Final = {
    "postgres": replace(
        _LANGUAGES["risingwave"],
        name="postgres",
        base="risingwave",
        defaults={"implicit_flush": "true", "primary_key_conflict": "error"},
        custom=True,
    ),
}
#: All names of the default schema in any dialect.
COMMON_NAMES: Final = tuple(
    dict.fromkeys([COMMON_SCHEMA, *(language.semantics.schema for language in _LANGUAGES.values())])
)


def register(language: Language) -> None:
    """Adds a dialect. INVALID_PARAMETER for a duplicate name."""
    if _LANGUAGES.setdefault(language.name, language) is not language:
        raise error("INVALID_PARAMETER", f'there is a dialect "{language.name}" already')


def registered() -> tuple[str, ...]:
    """The names of all dialects."""
    return tuple(_LANGUAGES)


def language_named(name: str) -> Language:
    """The dialect or variant with a name. Raises INVALID_PARAMETER for an unknown one."""
    found = _LANGUAGES.get(name) or _VARIANTS.get(name)
    if found is not None:
        return found
    known = (*_LANGUAGES, *_VARIANTS)
    raise error(
        "INVALID_PARAMETER",
        f'unknown dialect "{name}"',
        hint=did_you_mean(name, known) or "The dialects are: " + ", ".join(known) + ".",
    )
