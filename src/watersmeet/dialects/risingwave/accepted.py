"""Statements of RisingWave's clusters whose purpose Watersmeet decides itself: each is accepted with a notice,
or refused with the way round.

RisingWave, "CREATE DATABASE", "ALTER DATABASE", "ALTER SYSTEM", "CANCEL JOBS", "RECOVER", "View and
configure system parameters".
"""

from __future__ import annotations

import re
from typing import Any, Final

from watersmeet.catalog import DropWord
from watersmeet.dialects.statements.constraints import read_set_constraints
from watersmeet.dialects.statements.dml import read_merge
from watersmeet.dialects.tree.definitions import AlterWithoutEffect, RenameSchema
from watersmeet.dialects.tree.statements import Accepted, CancelJobs, KillQuery, Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_list, read_value, span_of
from watersmeet.dialects.variables import ONE_VALUE, RISINGWAVE, WITHOUT_EFFECT

_ONE_DATABASE: Final = "a directory is one database, and the objects of all databases are in it"

#: The parameters of a cluster. Those of its storage can be set in no running cluster.
SYSTEM_PARAMETERS: Final = (
    "adaptive_parallelism_strategy",
    "backup_storage_directory",
    "backup_storage_url",
    "barrier_interval_ms",
    "block_size_kb",
    "bloom_false_positive",
    "checkpoint_frequency",
    "compaction_catalog_config",
    "data_directory",
    "enable_tracing",
    "enforce_secret",
    "license_key",
    "max_concurrent_creating_streaming_jobs",
    "parallel_compact_size_mb",
    "pause_on_next_bootstrap",
    "per_database_isolation",
    "sstable_size_mb",
    "state_store",
    "telemetry_enabled",
    "use_new_object_prefix_strategy",
    "wasm_storage_url",
)

#: Statements that begin with ALTER and concern the nodes of a cluster.
_OF_CLUSTERS: Final = ("FRAGMENT", "FRAGMENTS", "COMPACTION GROUP")


def _accepted(cursor: Cursor, base: dict[str, Any], command: str, reason: str) -> Statement:
    """A statement that is read to its end, with the reason why it has no effect."""
    cursor.until("")
    return Accepted(**base, command=command, notice=f"{command} has no effect: {reason}")


def read_create_database(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE DATABASE; the cursor stands after DATABASE."""
    cursor.take("IF", "NOT", "EXISTS")
    cursor.name(reserved=True)
    return _accepted(cursor, base, "CREATE DATABASE", _ONE_DATABASE)


def read_drop_database(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads DROP DATABASE; the cursor stands after DATABASE."""
    cursor.take("IF", "EXISTS")
    read_list(cursor, lambda: cursor.name(reserved=True))
    return _accepted(cursor, base, "DROP DATABASE", _ONE_DATABASE)


def read_use(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `USE database`; the cursor stands after USE."""
    cursor.name(reserved=True)
    cursor.end()
    return _accepted(cursor, base, "USE", _ONE_DATABASE)


def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `SET DATABASE TO name` and SET CONSTRAINTS; returns None for variables. The cursor stands after SET."""
    start = cursor.index
    if cursor.take("CONSTRAINTS"):
        return read_set_constraints(cursor, base)
    if cursor.take("DATABASE") and (cursor.take("TO") or cursor.take("=")):
        return _accepted(cursor, base, "SET DATABASE", _ONE_DATABASE)
    cursor.index = start
    return None


#: The kinds of relations in ALTER, by their words.
_KINDS: Final[dict[str, DropWord]] = {
    "TABLE": "table",
    "SOURCE": "source",
    "SINK": "sink",
    "MATERIALIZED VIEW": "materialized view",
    "VIEW": "view",
    "INDEX": "index",
    "CONNECTION": "connection",
    "SUBSCRIPTION": "subscription",
    "SEQUENCE": "sequence",
    "TYPE": "type",
    "DOMAIN": "domain",
}

_PARALLELISM: Final = "ALTER DATABASE SET parallelism sets that of all views"
_HISTORY: Final = "a new view reads its history in bounded epochs"

#: Clauses of ALTER that change nothing, with the reasons.
_CLAUSES: Final = {
    "OWNER TO": "objects have no owners; GRANT gives privileges on them",
    "SET PARALLELISM": _PARALLELISM,
    "SET BACKFILL_PARALLELISM": _PARALLELISM,
    "SET RESOURCE_GROUP": "there is no cluster",
    "RESET RESOURCE_GROUP": "there is no cluster",
    "SET BACKFILL_RATE_LIMIT": _HISTORY,
    "SET BACKFILL_ORDER": _HISTORY,
    "SET DML_RATE_LIMIT": "INSERT writes at once",
    "SET STREAMING_ENABLE_UNALIGNED_JOIN": "all views show one moment",
    "SET CONFIG": "there is no cluster",
    "RESET CONFIG": "there is no cluster",
}


def _read_clause(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads a clause of `_CLAUSES`; returns None for others. The cursor stands at the kind."""
    if cursor.take("FUNCTION"):
        cursor.until("OWNER")
        reason = _CLAUSES["OWNER TO"]
        return _accepted(cursor, base, "ALTER FUNCTION", reason) if cursor.at("OWNER", "TO") else None
    kind = next((kind for words, kind in _KINDS.items() if cursor.take(*words.split())), None)
    if kind is None:
        return None
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    if kind == "materialized view" and cursor.at("SET", "BACKFILL_RATE_LIMIT"):
        return None
    for clause, reason in _CLAUSES.items():
        if cursor.take(*clause.split()):
            cursor.until("")
            base = {**base, "kind": kind, "name": name, "if_exists": if_exists}
            return AlterWithoutEffect(**base, clause=clause, reason=reason)
    return None


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads ALTER of parts of a cluster; returns None for other statements. The cursor stands after ALTER."""
    start = cursor.index
    for words in _OF_CLUSTERS:
        if cursor.take(*words.split()):
            return _accepted(cursor, base, f"ALTER {words}", "there is no cluster")
    if cursor.take("SYSTEM", "SET"):
        name = cursor.word().name
        known = name.removeprefix("rw_")
        if name in SYSTEM_PARAMETERS:
            return _accepted(cursor, base, f"ALTER SYSTEM SET {name}", "it is a parameter of a cluster")
        if known in WITHOUT_EFFECT or known in ONE_VALUE:
            return _accepted(cursor, base, f"ALTER SYSTEM SET {name}", f"SET {known} has none, either")
        if known in {variable.name for variable in RISINGWAVE if variable.effect}:
            span, hint = span_of(cursor.tokens[: cursor.index]), f"Write SET {known} in each session."
            return Refused(**base, error=not_supported(f"ALTER SYSTEM SET {name}", cursor.text, span, hint=hint))
    elif cursor.at("DATABASE") and not cursor.at("DATABASE", "SET") and cursor.take("DATABASE"):
        cursor.name(reserved=True)
        return _accepted(cursor, base, "ALTER DATABASE", _ONE_DATABASE)
    elif cursor.take("SCHEMA"):
        schema = cursor.name(reserved=True)
        if cursor.at("OWNER", "TO"):
            return _accepted(cursor, base, "ALTER SCHEMA", "objects have no owners; GRANT gives privileges on them")
        swaps = cursor.take("SWAP", "WITH")
        if not swaps:
            cursor.expect("RENAME", "TO")
        new = cursor.name()
        cursor.end()
        return RenameSchema(**base, name=schema, new=new, swaps=swaps)
    else:
        cursor.index = start
        if (found := _read_clause(cursor, base)) is not None:
            return found
    cursor.index = start
    return None


def read_cancel(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `CANCEL JOB | JOBS ids`; the cursor stands after CANCEL."""
    if not cursor.take("JOB"):
        cursor.expect("JOBS")
    ids = read_list(cursor, lambda: Name(read_value(cursor), span_of(cursor.tokens[cursor.index - 1 : cursor.index])))
    cursor.end()
    return CancelJobs(**base, ids=ids)


def read_recover(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads RECOVER; the cursor stands after RECOVER."""
    if cursor.at("FROM"):
        hint = "It is a statement of Timeplus: SET dialect = 'timeplus'."
        return Refused(**base, error=not_supported("RECOVER FROM", cursor.text, span_of(cursor.tokens[:2]), hint=hint))
    cursor.end()
    reason = "views resume by themselves after a restart; REFRESH MATERIALIZED VIEW computes a stopped one again"
    return _accepted(cursor, base, "RECOVER", reason)


def read_kill(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `KILL 'id'` of SHOW PROCESSLIST; returns None for KILL QUERY. The cursor stands after KILL."""
    if cursor.at("QUERY"):
        return None
    name = cursor.query_id()
    cursor.end()
    return KillQuery(**base, ids=(name,))


def read_deleted_backup(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Refuses `DELETE META SNAPSHOTS ids`; returns None for DELETE of rows. The cursor stands at DELETE."""
    if not (cursor.at("DELETE", "META") or cursor.at("DELETE", "BACKUP")):
        return None
    span = span_of(cursor.tokens[:2])
    hint = "Copies by `watersmeet backup` are directories or objects: delete them there."
    return Refused(**base, error=not_supported("DELETE of a backup", cursor.text, span, hint=hint))


def read_describe(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Refuses DESCRIBE FRAGMENTS; returns None for another DESCRIBE. The cursor stands after DESCRIBE."""
    if len(cursor.rest) < 2 or not (cursor.at("FRAGMENTS") or cursor.at("FRAGMENT")):
        return None
    span = span_of(cursor.tokens[:2])
    hint = "EXPLAIN ANALYZE name shows the operators of a view that runs."
    return Refused(**base, error=not_supported("DESCRIBE FRAGMENTS", cursor.text, span, hint=hint))


def read_rows_merge(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads MERGE, as PostgreSQL has it; the cursor stands at this word."""
    return read_merge(cursor, base)


def read_vacuum(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `VACUUM [(options)] [FULL] [FREEZE] [VERBOSE] [ANALYZE] [names]`; the cursor stands after VACUUM."""
    _skip_options(cursor, "FULL", "FREEZE", "VERBOSE", "ANALYZE")
    return _accepted(cursor, base, "VACUUM", "files are compacted while the database runs")


def read_analyze(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `ANALYZE [(options)] [VERBOSE] [names]`; the cursor stands after ANALYZE."""
    _skip_options(cursor, "VERBOSE")
    return _accepted(cursor, base, "ANALYZE", "queries need no statistics")


def _skip_options(cursor: Cursor, *words: str) -> None:
    """Reads options and names of relations to the end."""
    if cursor.take("("):
        cursor.until(")")
        cursor.expect(")")
    for word in words:
        cursor.take(word)
    while not cursor.done:
        cursor.relation_name()
        if cursor.at("("):
            cursor.names()
        if not cursor.take(","):
            break
    cursor.end()


def read_refresh(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Refuses REFRESH TABLE; returns None for another REFRESH. The cursor stands after REFRESH."""
    if not cursor.at("TABLE"):
        return None
    hint = "A table with a connector reads new rows by itself."
    return Refused(**base, error=not_supported("REFRESH TABLE", cursor.text, span_of(cursor.tokens[:2]), hint=hint))


def read_backup(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Refuses BACKUP META; the cursor stands after BACKUP."""
    hint = "`watersmeet backup PATH TARGET` copies a database, also while it is in use."
    return Refused(**base, error=not_supported("BACKUP", cursor.text, span_of(cursor.tokens[:1]), hint=hint))


#: Commands of psql that only concern its display.
_DISPLAY: Final = ("a", "echo", "f", "h", "pset", "qecho", "t", "timing", "warn", "x")

#: Other commands of psql that change no rows, with the reasons why they have no effect.
_COMMANDS: Final = {
    **dict.fromkeys(("prompt", "set", "unset"), "statements have no variables of psql"),
    **dict.fromkeys(("c", "connect"), _ONE_DATABASE),
    "encoding": "texts are UTF-8",
}

#: Commands of psql that would change what a script does, with the way round.
_COMMANDS_LACKING: Final = {
    **dict.fromkeys(("i", "include", "include_relative", "ir"), "`watersmeet run` takes several files."),
    "copy": "Write COPY … FROM 'path', or COPY … TO 'path'.",
    "d": "SHOW TABLES, SHOW MATERIALIZED VIEWS and DESCRIBE name show objects.",
    "q": "End the script there.",
}

_COMMAND: Final = re.compile(r"\\([A-Za-z_]+|\?)")


def read_command(base: dict[str, Any]) -> Statement:
    """Reads a command of psql, which is a line of its own. Refuses those that would change the effect of a script."""
    found = _COMMAND.match(base["sql"])
    name = "" if found is None else found[1]
    if name in _DISPLAY:
        return Accepted(**base, command="")
    if name in _COMMANDS:
        return Accepted(**base, command="", notice=f"\\{name} has no effect: {_COMMANDS[name]}")
    hint = _COMMANDS_LACKING.get("d" if name.startswith("d") else name, "Write it as a statement.")
    return Refused(**base, error=not_supported(f"the command \\{name} of psql", base["text"], base["span"], hint=hint))


def read_owned(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Refuses REASSIGN OWNED; the cursor stands after REASSIGN."""
    hint = "Objects have no owners: DROP USER needs no such statement. REVOKE takes privileges back."
    return Refused(**base, error=not_supported("REASSIGN OWNED", cursor.text, span_of(cursor.tokens[:2]), hint=hint))
