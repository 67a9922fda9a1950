"""The options of connector `postgres-cdc`.

RisingWave, "Ingest data from PostgreSQL CDC".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.databaseservers import Server
from watersmeet.sources.options import Options, refuse

CONNECTOR: Final = "postgres-cdc"
#: The options of a table, which the form for a single table has among those of the database.
TABLE_OPTIONS: Final = (
    "table.name",
    "snapshot",
    "snapshot.batch_size",
    "snapshot.interval",
    "backfill.parallelism",
    "backfill.num_rows_per_split",
    "backfill.as_even_splits",
)
#: Rows that are read at a time while a table is filled.
_BATCH_ROWS: Final = 100_000
_SSL: Final = ("disable", "disabled", "allow", "prefer", "preferred", "require", "required", "verify-ca", "verify-full")
_PORT: Final = 5432


@dataclass(frozen=True)
class DatabaseOptions:
    """schema: of tables without one. creates_publication: it is made, and tables are added to it, if it lacks them.
    adds_columns: columns that are added there are added here.
    """

    server: Server
    schema: str
    slot: str
    publication: str
    creates_publication: bool
    adds_columns: bool


@dataclass(frozen=True)
class TableOptions:
    """See `catalog.Captured`."""

    has_snapshot: bool
    batch_rows: int


def database_options(given: Mapping[str, str]) -> DatabaseOptions:
    """CONNECTOR_OPTION for what is missing, unknown or wrong. The slot has a name already."""
    options = Options({n: v for n, v in given.items() if n != "connector" and not n.startswith("debezium.")})
    mode = options.choice("ssl.mode", among=_SSL, default="prefer")
    found = DatabaseOptions(
        Server(
            _needed(options, "hostname"),
            options.integer("port", default=_PORT, minimum=1, maximum=65535) or _PORT,
            _needed(options, "username"),
            options.text("password") or "",
            _needed(options, "database.name"),
            {"disabled": "disable", "preferred": "prefer", "required": "require"}.get(mode, mode),
        ),
        options.text("schema.name") or "public",
        _needed(options, "slot.name"),
        options.text("publication.name") or "rw_publication",
        options.flag("publication.create.enable") is not False,
        bool(options.flag("auto.schema.change")),
    )
    options.flag("transactional")  # changes of a transaction are always one commit
    if not all(c.isascii() and (c.isalnum() or c == "_") for c in found.slot) or found.slot.lower() != found.slot:
        refuse(f'option slot.name can\'t be "{found.slot}"', hint="It has lower-case letters, digits and _ only.")
    options.finish(CONNECTOR)
    return found


def table_options(given: Mapping[str, str]) -> TableOptions:
    """CONNECTOR_OPTION for what is unknown or wrong."""
    options = Options(given)
    batch_rows = options.integer("snapshot.batch_size", default=_BATCH_ROWS, minimum=1) or _BATCH_ROWS
    found = TableOptions(options.flag("snapshot") is not False, batch_rows)
    # Rows are read one piece after the other, however they are cut.
    options.integer("snapshot.interval", minimum=0)
    options.integer("backfill.parallelism", minimum=0)
    options.integer("backfill.num_rows_per_split", minimum=0)
    options.flag("backfill.as_even_splits")
    options.finish("a table of connector postgres-cdc")
    return found


def _needed(options: Options, name: str) -> str:
    value = options.text(name)
    if not value:
        refuse(f'connector {CONNECTOR} needs the option "{name}"', hint=f"Write {name} = '…'.")
    return value
