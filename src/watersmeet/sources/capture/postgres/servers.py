"""What capturing changes needs of a PostgreSQL server: its settings, a slot, a publication, tables."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from watersmeet.clients.databaseservers import may_not_read
from watersmeet.clients.postgres import connect, failure, library
from watersmeet.errors import did_you_mean, error
from watersmeet.sources.capture.contract import AGAIN, LostPlaceError, TableThere
from watersmeet.sources.capture.positions import Snapshot
from watersmeet.sources.capture.postgres.options import PostgresOptions
from watersmeet.sources.capture.postgres.pgoutput import lsn_of, lsn_text, type_text
from watersmeet.sources.options import refuse
from watersmeet.sources.postgrescolumns import described

_TABLE: Final = """
SELECT c.oid, c.relkind, c.relpersistence, c.relreplident, pg_has_role(c.relowner, 'USAGE'),
    has_table_privilege(c.oid, 'SELECT'),
    ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(n, o), pg_attribute a
        WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid AND a.attnum = k.n ORDER BY o)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""
_TYPES: Final = """
SELECT attname, atttypid::int8, atttypmod FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
_SLOT: Final = """
SELECT plugin, database, active, wal_status, confirmed_flush_lsn::text, active_pid FROM pg_replication_slots
WHERE slot_name = %s
"""
_RETAINED: Final = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::int8
FROM pg_replication_slots WHERE slot_name = %s
"""
#: The value of a column in rows that are older than it, which are stored without it.
_ADDED: Final = """
SELECT (attmissingval::text::text[])[1], atthasdef OR attidentity <> '' FROM pg_attribute
WHERE attrelid = %s AND attname = %s AND NOT attisdropped
"""
#: Which rows of a table a publication has, NULL for all. Servers before 15 have no such column.
_LISTED: Final = """
SELECT to_jsonb(t) ->> 'rowfilter' FROM pg_publication_tables t
WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""
#: Who writes a table now. They may have begun before it was published.
_WRITERS: Final = """
SELECT virtualtransaction FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (SELECT relid FROM pg_partition_tree(%s) UNION ALL SELECT %s::oid::regclass)
    AND pid <> pg_backend_pid()
"""


def check_server(connection: Any, options: PostgresOptions) -> None:
    """CONNECTOR_OPTION if the server does not write what is needed, or the user may not read it."""
    (level,) = connection.execute("SHOW wal_level").fetchone()
    if level != "logical":
        refuse(
            f"the PostgreSQL server at {options.server.host}:{options.server.port} has wal_level = {level}",
            detail="Its log does not have what changes are read from.",
            hint="Run ALTER SYSTEM SET wal_level = logical there, and restart the server.",
        )
    (may_replicate,) = connection.execute(
        "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    if not may_replicate:
        refuse(
            f'user "{options.server.user}" may not read changes',
            hint=f'A superuser has to give the right: ALTER ROLE "{options.server.user}" REPLICATION.',
        )


def table_there(connection: Any, options: PostgresOptions, schema: str, name: str) -> TableThere:
    """A table that can be captured. UNDEFINED_OBJECT, CONNECTOR_OPTION."""
    found = connection.execute(_TABLE, [schema, name]).fetchone()
    if found is None:
        others = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        raise error(
            "UNDEFINED_OBJECT",
            f'there is no table "{schema}.{name}" in {options.server.shown}',
            hint=did_you_mean(name, [n for (n,) in others]) or "Check the table and its schema.",
        )
    oid, _, persistence, identity, _, may_read, key = found
    table = TableThere(
        schema,
        name,
        oid,
        tuple(described(connection, oid)),
        tuple(key),
        {n: type_text(t, m) for n, t, m in connection.execute(_TYPES, [oid])},
    )
    if not may_read:
        raise may_not_read(options.server, table.shown)
    if persistence != "p":
        refuse(f'the changes of table "{table.shown}" are not in the log of its server: it is not permanent')
    if not key:
        refuse(
            f'table "{table.shown}" has no primary key',
            detail="By their keys changes find the rows that they change.",
            hint=f"ALTER TABLE {table.shown} ADD PRIMARY KEY (…) gives it one.",
        )
    check_identity(table.shown, identity)
    return table


def check_identity(shown: str, identity: str) -> None:
    """CONNECTOR_OPTION if changes of a table don't say by its primary key which rows they change."""
    if identity not in ("d", "f"):
        refuse(
            f'the changes of table "{shown}" don\'t have its primary key',
            hint=f"ALTER TABLE {shown} REPLICA IDENTITY DEFAULT lets them have it.",
        )


def ensure_publication(connection: Any, options: PostgresOptions, table: TableThere | None) -> bool:
    """Makes the publication if it is not there, and adds the table. Returns whether it was made. CONNECTOR_OPTION."""
    sql = library().sql
    name = sql.Identifier(options.publication)
    there = connection.execute(
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication "
        "WHERE pubname = %s",
        [options.publication],
    ).fetchone()
    made = there is None
    if there is None:
        _may_create(connection, options)
        if table is not None:
            _may_publish(connection, options, table)
        with connection.transaction():
            connection.execute(sql.SQL("CREATE PUBLICATION {} WITH (publish_via_partition_root = true)").format(name))
    elif not there[1]:
        refuse(f'publication "{options.publication}" does not publish every INSERT, UPDATE, DELETE and TRUNCATE')
    if table is None:
        return made
    if there is not None and not there[2] and _is_partitioned(connection, table):
        refuse(
            f'publication "{options.publication}" has changes of the partitions of table "{table.shown}", not its own',
            hint=f"Run ALTER PUBLICATION {options.publication} SET (publish_via_partition_root = true) there.",
        )
    if there is not None and there[0]:
        return made
    listed = connection.execute(_LISTED, [options.publication, table.schema, table.name]).fetchone()
    if listed is not None and listed[0] is not None:
        refuse(
            f'publication "{options.publication}" has only rows of table "{table.shown}" where {listed[0]}',
            hint="Write publication.name = … for another one, which has all of them.",
        )
    if listed is None:
        add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}")
        statement = add.format(name, sql.Identifier(table.schema, table.name))
        if not options.creates_publication:
            refuse(
                f'publication "{options.publication}" does not have table "{table.shown}"',
                hint=f"Run ALTER PUBLICATION {options.publication} ADD TABLE {table.shown} there.",
            )
        _may_publish(connection, options, table)
        connection.execute(statement)
    return made


def _is_partitioned(connection: Any, table: TableThere) -> bool:
    (kind,) = connection.execute("SELECT relkind FROM pg_class WHERE oid = %s", [table.oid]).fetchone()
    return bool(kind == "p")


def _may_publish(connection: Any, options: PostgresOptions, table: TableThere) -> None:
    (is_owner,) = connection.execute(
        "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s", [table.oid]
    ).fetchone()
    if not is_owner:
        refuse(
            f'user "{options.server.user}" does not own table "{table.shown}", so it can\'t publish it',
            hint=f"The owner can: ALTER PUBLICATION {options.publication} ADD TABLE {table.shown}.",
        )


def _may_create(connection: Any, options: PostgresOptions) -> None:
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


def ensure_slot(connection: Any, options: PostgresOptions) -> tuple[int, bool]:
    """(the place from which the slot has changes, whether it was made). CONNECTOR_OPTION for one of another use."""
    found = connection.execute(_SLOT, [options.slot]).fetchone()
    if found is None:
        (lsn,) = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [options.slot]
        ).fetchone()
        return lsn_of(lsn), True
    plugin, database, active, _, confirmed, pid = found
    if plugin != "pgoutput" or database != options.server.database:
        refuse(f'replication slot "{options.slot}" is of plugin {plugin}, in database "{database}"')
    if active:
        refuse(f'replication slot "{options.slot}" is in use, by process {pid} of the server')
    return lsn_of(confirmed), False


def check_slot(connection: Any, options: PostgresOptions, lsn: int) -> None:
    """LostPlaceError if the slot does not have all changes from that place on."""
    found = connection.execute(_SLOT, [options.slot]).fetchone()
    if found is None:
        raise LostPlaceError(f'replication slot "{options.slot}" is gone. {AGAIN}')
    _, _, _, status, confirmed, _ = found
    if status == "lost":
        raise LostPlaceError(
            f'the server has taken replication slot "{options.slot}" away what it still needed. {AGAIN}'
        )
    if confirmed is not None and lsn_of(confirmed) > lsn:
        raise LostPlaceError(f'replication slot "{options.slot}" was read by another reader. {AGAIN}')
    end = end_of_log(connection)
    if end < lsn:
        raise LostPlaceError(
            f"the log of the server ends at {lsn_text(end)}, and {lsn_text(lsn)} was read already: it is another "
            f"server, or an older state of this one. {AGAIN}"
        )


def history_now(connection: Any) -> str:
    """The server's identifier and its timeline, which is another one after each promotion of a standby."""
    found = connection.execute(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()) FROM pg_control_system()"
    ).fetchone()
    return f"{found[0]}/{int(found[1][:8], 16)}"


def check_history(options: PostgresOptions, before: str, now: str, lsn: int) -> None:
    """LostPlaceError if a place of one history is not in another one. before: empty if it is not known.

    PostgreSQL, "Streaming Replication Protocol", TIMELINE_HISTORY.
    """
    if before in ("", now):
        return
    (server, timeline), (server_now, timeline_now) = before.split("/"), now.split("/")
    where = f"{options.server.host}:{options.server.port}"
    if server != server_now:
        raise LostPlaceError(f"the server at {where} is another one than that whose changes were read. {AGAIN}")
    with contextlib.closing(connect(options.server, replication=True)) as connection:
        try:
            ((_, content),) = connection.cursor().execute(f"TIMELINE_HISTORY {timeline_now}").fetchall()
        except library().Error as cause:
            raise failure(cause, options.server) from cause
    text = content if isinstance(content, str) else bytes(content).decode()  # servers before 14 send bytea
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    ended = next((lsn_of(line[1]) for line in lines if line[0] == timeline), 0)
    if lsn > ended:
        raise LostPlaceError(
            f"the server was promoted at {lsn_text(ended)}, and {lsn_text(lsn)} of the one before it was read already: "
            f"it lacks changes that are here. {AGAIN}"
        )


def drop_slot(connection: Any, slot: str) -> None:
    """Drops a slot, if it is there; who reads it is ended."""
    connection.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active", [slot]
    )
    for _ in range(100):
        gone = connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
            [slot],
        )
        if gone.fetchone() or not connection.execute(_SLOT, [slot]).fetchone():
            return
        connection.execute("SELECT pg_sleep(0.05)")
    raise error("RUNTIME_UNAVAILABLE", f'replication slot "{slot}" is in use')


def drop_publication(connection: Any, publication: str) -> None:
    """Drops a publication, if it is there."""
    connection.execute(library().sql.SQL("DROP PUBLICATION IF EXISTS {}").format(library().sql.Identifier(publication)))


def unpublish(connection: Any, publication: str, schema: str, table: str) -> None:
    """Takes a table out of a publication, if it is in there."""
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


def value_before(connection: Any, table: TableThere, column: str) -> str | None:
    """The text of an added column's value in rows that are older than it; None is NULL. FEATURE_NOT_SUPPORTED if they
    need not have the same.
    """
    found = connection.execute(_ADDED, [table.oid, column]).fetchone()
    if found is None:
        raise error("UNDEFINED_COLUMN", f'column "{column}" of table "{table.shown}" is gone')
    value: str | None = found[0]
    if value is None and found[1]:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'column "{column}" was added to table "{table.shown}", and each row got a value of its own',
            detail="The server writes no changes of rows for that.",
        )
    return value


def snapshot_now(connection: Any) -> Snapshot:
    """What a query sees that begins now; in a transaction, what all its queries see."""
    (text,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    return Snapshot.parsed(text)


def writers(connection: Any, oid: int) -> frozenset[str]:
    """The transactions that write a table now."""
    return frozenset(w for (w,) in connection.execute(_WRITERS, [oid, oid]))


def lag(connection: Any, slot: str, lsn: str) -> tuple[int, int] | None:
    """(bytes of the log that the slot keeps, bytes that come after that place); None if there is no such slot."""
    found = connection.execute(_RETAINED, [lsn, slot]).fetchone()
    return None if found is None else (found[0] or 0, max(0, found[1]))


def end_of_log(connection: Any) -> int:
    """Everything that is committed now is before that place."""
    (lsn,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return lsn_of(lsn)
