"""Dialects: from SQL text to statements (`parse`), and from queries to the algebra (`binder`) or DuckDB (`batch`).

A dialect is a small difference to one of sqlglot's; everything else is shared. Only RisingWave's
exists so far.
"""

from __future__ import annotations

from typing import Final

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError

from watersmeet.dialects.queries import Parameters
from watersmeet.dialects.risingwave import WatersmeetRisingWave
from watersmeet.dialects.script import cut, read_script
from watersmeet.dialects.statements import Statement
from watersmeet.errors import did_you_mean, error

_DIALECTS: Final[dict[str, type[Dialect]]] = {"risingwave": WatersmeetRisingWave}
_PLANNED: Final = ("lenses", "sqlstream", "timeplus")

__all__ = ["dialect_named", "parse", "split_statements"]


def dialect_named(name: str) -> Dialect:
    """The dialect; INVALID_PARAMETER for an unknown name, FEATURE_NOT_SUPPORTED for one that is not there yet."""
    if name in _DIALECTS:
        return _DIALECTS[name]()
    if name in _PLANNED:
        raise error("FEATURE_NOT_SUPPORTED", f"the dialect {name} is not supported yet",
                    hint="The dialect risingwave is.")
    raise error("INVALID_PARAMETER", f'unknown dialect "{name}"',
                hint=did_you_mean(name, _DIALECTS) or "The dialects are: " + ", ".join(_DIALECTS) + ".")


def parse(text: str, dialect: str = "risingwave", parameters: Parameters = ()) -> list[Statement]:
    """The statements of `text` in order.

    parameters: values for `?` (in order), `$1` (by number) or named placeholders; they become
    literals of the tree, never text. All spans are in `text`. Raises SYNTAX_ERROR with a place.
    """
    return read_script(text, dialect_named(dialect), parameters)


def split_statements(text: str, dialect: str = "risingwave") -> tuple[list[str], str]:
    """The complete statements of `text` (those that end in a semicolon) and what is left, for a shell.

    An unfinished quote or comment belongs to the rest.
    """
    try:
        parts = cut(dialect_named(dialect).tokenize(text))
    except TokenError:
        return [], text
    complete = [text[p[0].start : p[-1].end + 1] for p in parts[:-1] if p]
    return complete, text[parts[-1][0].start :] if parts[-1] else ""
