"""The options of a table of a captured database, whatever its system.

RisingWave, "Ingest data from PostgreSQL CDC", "Ingest data from MySQL CDC".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.sources.options import Options, refuse

#: The options of a table, which the form for a single table has among those of the database.
TABLE_OPTIONS: Final = (
    "table.name",
    "snapshot",
    "on_error",
    "snapshot.batch_size",
    "snapshot.interval",
    "backfill.parallelism",
    "backfill.num_rows_per_split",
    "backfill.as_even_splits",
)
#: Rows that are read at a time while a table is filled.
_BATCH_ROWS: Final = 100_000


@dataclass(frozen=True)
class TableOptions:
    """See `catalog.Captured`."""

    has_snapshot: bool
    batch_rows: int
    stops: bool


def table_options(given: Mapping[str, str], connector: str) -> TableOptions:
    """CONNECTOR_OPTION for what is unknown or wrong."""
    options = Options(given)
    batch_rows = options.integer("snapshot.batch_size", default=_BATCH_ROWS, minimum=1) or _BATCH_ROWS
    stops = options.choice("on_error", among=("skip", "stop"), default="skip") == "stop"
    found = TableOptions(options.flag("snapshot") is not False, batch_rows, stops)
    # Rows are read one piece after the other, however they are cut.
    options.integer("snapshot.interval", minimum=0)
    options.integer("backfill.parallelism", minimum=0)
    options.integer("backfill.num_rows_per_split", minimum=0)
    options.flag("backfill.as_even_splits")
    options.finish(f"a table of connector {connector}")
    return found


def needed(options: Options, name: str, connector: str) -> str:
    """An option that has to be given. CONNECTOR_OPTION."""
    value = options.text(name)
    if not value:
        refuse(f'connector {connector} needs the option "{name}"', hint=f"Write {name} = '…'.")
    return value
