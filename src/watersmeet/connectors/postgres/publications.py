"""PostgreSQL's publications, which determine the tables, rows and columns whose changes a server writes.

PostgreSQL, "Logical Replication", "Publication"; "CREATE PUBLICATION".
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.databases.captures import DatabaseOptions, TableThere, database_specs, server_of
from watersmeet.connectors.postgres.client import library

CONNECTOR: Final = "postgres-cdc"
_SLOT, _PUBLICATION_NAME, _CREATES = "slot.name", "publication.name", "publication.create.enable"

#: RisingWave's default name, for existing publications and for sources created without a name.
_SHARED_PUBLICATION: Final = "rw_publication"

#: The form of names from `default_options`.
_OWN_NAME: Final = re.compile(r"watersmeet_[0-9a-f]{16}")


@dataclass(frozen=True)
class PostgresOptions(DatabaseOptions):
    """creates_publication: whether to create the publication if it is missing, and to add missing tables to it."""

    slot: str
    publication: str
    creates_publication: bool

    @property
    def shares_publication(self) -> bool:
        """Whether other readers may use the publication, because the user chose its name."""
        return _OWN_NAME.fullmatch(self.publication) is None


CAPTURE_OPTIONS: Final = OptionSet(
    CONNECTOR,
    database_specs(
        5432,
        ("disable", "disabled", "allow", "prefer", "preferred", "require", "required", "verify-ca", "verify-full"),
        OptionSpec("schema.name", "The schema of tables that are named without one.", default="public"),
        OptionSpec(_SLOT, "The replication slot; its name is generated if missing."),
        OptionSpec(
            _PUBLICATION_NAME, "The publication; its name is generated if missing.", default=_SHARED_PUBLICATION
        ),
        OptionSpec(_CREATES, "Whether the publication is created, and tables are added to it.", "flag", default=True),
    ),
)


def default_options(given: Mapping[str, str]) -> dict[str, str]:
    """New names of a slot and a publication for a source. If it must not create a publication, RisingWave's default
    name.
    """
    name = f"watersmeet_{secrets.token_hex(8)}"
    creates = CAPTURE_OPTIONS.read(given).flag(_CREATES)
    return {_SLOT: name, _PUBLICATION_NAME: name if creates else _SHARED_PUBLICATION}


def database_options(given: Mapping[str, str]) -> PostgresOptions:
    """The options, with a slot name already chosen. Raises CONNECTOR_OPTION for missing, unknown or invalid options."""
    options = CAPTURE_OPTIONS.read(given)
    options.check()
    mode = options.choice("ssl.mode")
    slot = options.needed(_SLOT)
    if not all(c.isascii() and (c.isalnum() or c == "_") for c in slot) or slot.lower() != slot:
        refuse(f'option slot.name can\'t be "{slot}"', hint="It has lower-case letters, digits and _ only.")
    return PostgresOptions(
        server_of(options, {"disabled": "disable", "preferred": "prefer", "required": "require"}.get(mode, mode)),
        options.text("schema.name"),
        options.flag("auto.schema.change"),
        slot,
        options.text(_PUBLICATION_NAME),
        options.flag(_CREATES),
    )


#: Servers before version 18 have no `pubgencols`.
_PUBLICATION: Final = """
SELECT oid::int8, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
    to_jsonb(p) ->> 'pubgencols' = 's'
FROM pg_publication p WHERE pubname = %s
"""

#: The query of the tables whose changes are those of a table: its partitions, or itself. Servers before version 15 have
#: neither filters nor lists of columns.
_LISTED: Final = """
WITH own AS (
    SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND c.oid IN (SELECT %s::oid UNION SELECT relid FROM pg_partition_tree(%s))
)
SELECT t.pubname IS NOT NULL, to_jsonb(t) ->> 'rowfilter', to_jsonb(t) -> 'attnames'
FROM own LEFT JOIN pg_publication_tables t ON t.pubname = %s AND t.schemaname = nspname AND t.tablename = relname
"""

#: The query of a publication's entries for a table or for the tables of which it is a partition.
_ENTRIES: Final = """
SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_publication_rel WHERE prpubid = %s AND prrelid IN (
    SELECT %s::oid UNION SELECT relid FROM pg_partition_ancestors(%s))
"""

_OF_TABLE: Final = """
SELECT n.nspname, c.relname, c.relkind = 'p' OR c.relispartition, pg_has_role(c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""

_GENERATED: Final = """
SELECT attname::text, attgenerated::text FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''
"""

#: The first server version whose publications can have stored generated columns.
_WITH_GENERATED: Final = 180000

#: The reasons why a column has no changes, for messages.
_IS_COMPUTED: Final = "is generated, and the server does not write its changes"


class Publication(NamedTuple):
    """A publication of the server. is_complete: whether it publishes every kind of change. via_root: whether it
    publishes changes of partitions as changes of the partitioned table. has_generated: whether it publishes stored
    generated columns.
    """

    oid: int
    has_all_tables: bool
    is_complete: bool
    via_root: bool
    has_generated: bool


class _Listing(NamedTuple):
    """A table in a publication. filters: conditions on its rows. columns: the published columns; None for all."""

    is_listed: bool
    filters: list[str]
    columns: set[str] | None


def ensure_publication(connection: Any, options: PostgresOptions, table: TableThere | None) -> bool:
    """Creates the publication if it does not exist, and adds the table. Returns whether it was created.

    CONNECTOR_OPTION.
    """
    sql = library().sql
    name = sql.Identifier(options.publication)
    found = _publication(connection, options)
    if found is None:
        _check_may_create(connection, options)
        if table is not None:
            _check_may_publish(connection, options, table)
        with_generated = (
            sql.SQL(" WITH (publish_generated_columns = stored)")
            if connection.info.server_version >= _WITH_GENERATED
            else sql.SQL("")
        )
        with connection.transaction():
            connection.execute(sql.SQL("CREATE PUBLICATION {}{}").format(name, with_generated))
    elif not found.is_complete:
        refuse(f'publication "{options.publication}" does not publish every INSERT, UPDATE, DELETE and TRUNCATE')
    if table is None:
        return found is None
    (_, _, has_partitions, _) = connection.execute(_OF_TABLE, [table.oid]).fetchone()
    if found is not None and found.via_root and has_partitions:
        refuse(
            f'publication "{options.publication}" has no TRUNCATE of single partitions of table "{table.shown}"',
            detail="With publish_via_partition_root = true the server does not write it.",
            hint=f"Run ALTER PUBLICATION {options.publication} SET (publish_via_partition_root = false), or leave out "
            "publication.name.",
        )
    listing = _listing(connection, options, table.oid)
    if listing.filters:
        refuse(
            f'publication "{options.publication}" has only rows of table "{table.shown}" where {listing.filters[0]}',
            hint="Write publication.name = … for another one, which has all of them.",
        )
    if not listing.is_listed and not (found is not None and found.has_all_tables):
        if not options.creates_publication:
            refuse(
                f'publication "{options.publication}" does not have table "{table.shown}"',
                hint=f"Run ALTER PUBLICATION {options.publication} ADD TABLE {table.shown} there.",
            )
        _check_may_publish(connection, options, table)
        add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}")
        connection.execute(add.format(name, sql.Identifier(table.schema, table.name)))
    return found is None


def publication_entry(connection: Any, options: PostgresOptions, oid: int) -> str:
    """The numbers of the publication and of its entry for a table, which change if either is created again."""
    found = _publication(connection, options)
    if found is None:
        return ""
    (entries,) = connection.execute(_ENTRIES, [found.oid, oid, oid]).fetchone()
    return f"{found.oid}/{entries or ''}"


def why_unpublished(
    connection: Any, options: PostgresOptions, oid: int, schema: str, name: str, entry: str, columns: set[str]
) -> str:
    """The reason why the server may not have written all changes of a table; empty if it has.

    entry: an earlier result of `publication_entry`; empty if unknown. columns: the columns that are read.
    """
    shown = f'table "{schema}.{name}"'
    there = connection.execute(_OF_TABLE, [oid]).fetchone()
    if there is None:
        return f"{shown} was dropped"
    if there[:2] != (schema, name):
        return f'{shown} was renamed to "{there[0]}.{there[1]}"'
    found = _publication(connection, options)
    publication = f'publication "{options.publication}"'
    if found is None:
        return f"{publication} of {shown} was dropped"
    if not found.is_complete:
        return f"{publication} does not publish every INSERT, UPDATE, DELETE and TRUNCATE"
    # The entry is read first, so that the listing includes every later change of the publication.
    added = entry and not _has_entry(entry, publication_entry(connection, options, oid))
    listing = _listing(connection, options, oid)
    if not listing.is_listed and not (found.via_root and there[2] and _is_listed(connection, options, schema, name)):
        return f"{shown} is not in {publication} any more"
    if listing.filters:
        return f"{publication} has only rows of {shown} where {listing.filters[0]}"
    if listing.columns is not None and (lacking := sorted(columns - listing.columns)):
        return f'{publication} does not have column "{lacking[0]}" of {shown}'
    if added:
        return f"{shown} was taken out of {publication} and added again"
    return ""


def _has_entry(known: str, now: str) -> bool:
    """Whether a publication still has an earlier entry for a table. Other entries may have been added."""
    (publication, entries), (publication_now, entries_now) = known.split("/"), now.split("/")
    if publication != publication_now:
        return False
    return not entries or bool(set(entries.split(",")) & set(entries_now.split(",")))


def unwritten_columns(connection: Any, options: PostgresOptions, oid: int) -> dict[str, str]:
    """The columns of a table whose changes the server does not write, with the reason; for an unpublished table, those
    after it is published.
    """
    found = _publication(connection, options)
    listing = _listing(connection, options, oid)
    generated = dict(connection.execute(_GENERATED, [oid]).fetchall())
    if listing.columns is not None:
        names = connection.execute(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped", [oid]
        )
        return {
            n: _IS_COMPUTED if n in generated else f'is not in publication "{options.publication}"'
            for (n,) in names
            if n not in listing.columns
        }
    is_new = found is None and connection.info.server_version >= _WITH_GENERATED
    has_stored = is_new if found is None else found.has_generated
    return {n: _IS_COMPUTED for n, kind in generated.items() if kind != "s" or not has_stored}


def drop_publication(connection: Any, publication: str) -> None:
    """Drops a publication if it exists."""
    connection.execute(library().sql.SQL("DROP PUBLICATION IF EXISTS {}").format(library().sql.Identifier(publication)))


def unpublish(connection: Any, publication: str, schema: str, table: str) -> None:
    """Removes a table from a publication if the publication contains it."""
    sql = library().sql
    listed = connection.execute(
        "SELECT 1 FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid "
        "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE p.pubname = %s AND n.nspname = %s AND c.relname = %s",
        [publication, schema, table],
    ).fetchone()
    if listed:
        drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
        connection.execute(drop.format(sql.Identifier(publication), sql.Identifier(schema, table)))


def other_slots(connection: Any, options: PostgresOptions) -> list[str]:
    """The other replication slots of the database, which may also use the publication.

    PostgreSQL does not record which publications a slot uses.
    """
    found = connection.execute(
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput' "
        "AND slot_name <> %s ORDER BY 1",
        [options.slot],
    )
    return [name for (name,) in found]


def _publication(connection: Any, options: PostgresOptions) -> Publication | None:
    found = connection.execute(_PUBLICATION, [options.publication]).fetchone()
    if found is None:
        return None
    oid, has_all_tables, is_complete, via_root, has_generated = found
    return Publication(oid, has_all_tables, is_complete, via_root, bool(has_generated))


def _listing(connection: Any, options: PostgresOptions, oid: int) -> _Listing:
    rows = connection.execute(_LISTED, [oid, oid, options.publication]).fetchall()
    lists = [set(columns) for is_listed, _, columns in rows if is_listed and columns is not None]
    if rows:
        is_listed = all(found for found, _, _ in rows)
    else:  # a partitioned table without partitions
        found = _publication(connection, options)
        entry = found and connection.execute(_ENTRIES, [found.oid, oid, oid]).fetchone()
        is_listed = bool(found and (found.has_all_tables or (entry and entry[0])))
    return _Listing(is_listed, [f for _, f, _ in rows if f], set.intersection(*lists) if lists else None)


def _is_listed(connection: Any, options: PostgresOptions, schema: str, name: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
        [options.publication, schema, name],
    )
    return found.fetchone() is not None


def _check_may_publish(connection: Any, options: PostgresOptions, table: TableThere) -> None:
    (_, _, _, is_owner) = connection.execute(_OF_TABLE, [table.oid]).fetchone()
    if not is_owner:
        refuse(
            f'user "{options.server.user}" does not own table "{table.shown}", so it can\'t publish it',
            hint=f"The owner can: ALTER PUBLICATION {options.publication} ADD TABLE {table.shown}.",
        )


def _check_may_create(connection: Any, options: PostgresOptions) -> None:
    if not options.creates_publication:
        refuse(
            f'there is no publication "{options.publication}" in {options.server.shown}',
            hint="Write publication.create.enable = 'true', or run CREATE PUBLICATION there.",
        )
    (may,) = connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
    if not may:
        refuse(
            f'user "{options.server.user}" may not create a publication in {options.server.shown}',
            hint=f"The owner has to give the right: GRANT CREATE ON DATABASE {options.server.database} TO "
            f'"{options.server.user}".',
        )
