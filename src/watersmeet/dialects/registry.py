"""The dialects by name."""

from __future__ import annotations

from typing import Final

from sqlglot.dialects.dialect import Dialect

from watersmeet.dialects.risingwave import WatersmeetRisingWave
from watersmeet.errors import did_you_mean, error

_DIALECTS: Final[dict[str, type[Dialect]]] = {"risingwave": WatersmeetRisingWave}
_PLANNED: Final = ("lenses", "sqlstream", "timeplus")


def dialect_named(name: str) -> Dialect:
    """The dialect; INVALID_PARAMETER for an unknown name, FEATURE_NOT_SUPPORTED for one that is not there yet."""
    if name in _DIALECTS:
        return _DIALECTS[name]()
    if name in _PLANNED:
        raise error("FEATURE_NOT_SUPPORTED", f"the dialect {name} is not supported yet",
                    hint="The dialect risingwave is.")
    raise error("INVALID_PARAMETER", f'unknown dialect "{name}"',
                hint=did_you_mean(name, _DIALECTS) or "The dialects are: " + ", ".join(_DIALECTS) + ".")
