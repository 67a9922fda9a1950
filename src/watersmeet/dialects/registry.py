"""The dialects by name: grammar, statements of their own, meaning."""

from __future__ import annotations

from typing import Final

from watersmeet.catalog import COMMON_SCHEMA
from watersmeet.dialects import variables
from watersmeet.dialects.language import Language
from watersmeet.dialects.lenses import ddl as lenses
from watersmeet.dialects.lenses.ddl import goes_on, read_insert
from watersmeet.dialects.lenses.grammar import WatersmeetLenses
from watersmeet.dialects.lenses.variables import LENSES as LENSES_VARIABLES
from watersmeet.dialects.risingwave import ddl as functions
from watersmeet.dialects.risingwave.grammar import WatersmeetRisingWave
from watersmeet.dialects.semantics import LENSES, RISINGWAVE, SQLSTREAM, TIMEPLUS
from watersmeet.dialects.sqlstream import ddl as sqlstream
from watersmeet.dialects.sqlstream.grammar import WatersmeetSqlstream
from watersmeet.dialects.sqlstream.merging import read_merge
from watersmeet.dialects.statements.alter import read_alter, read_rename
from watersmeet.dialects.timeplus import ddl as timeplus
from watersmeet.dialects.timeplus.columns import read_columns
from watersmeet.dialects.timeplus.ddl import CODES, read_subscription
from watersmeet.dialects.timeplus.grammar import WatersmeetTimeplus
from watersmeet.errors import did_you_mean, error

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
