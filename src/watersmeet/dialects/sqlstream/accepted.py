"""Statements of s-Server and commands of its client sqlline whose purpose Watersmeet decides itself, in tables: each is
accepted with a notice, or refused with the way round. EXPLAIN PLAN.

SQLstream, "ALTER statements", "SET PATH", "EXPLAIN PLAN", "CREATE FOREIGN DATA WRAPPER"; sqlline, "Command reference".
"""

from __future__ import annotations

import re
from typing import Any, Final

from watersmeet.dialects.tree.statements import Accepted, Explain, Name, Refused, SetVariable, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value, span_of, unquoted
from watersmeet.errors import did_you_mean, error

#: The catalog of s-Server; a name may begin with it.
CATALOG: Final = "LOCALDB"

#: The session variable that sqlline's `!set force` sets.
CONTINUES: Final = "continue_after_errors"

_SHOWN: Final = "it only concerns how sqlline prints"
_CONNECTED: Final = "the script runs on the connection that it was given to"

#: Commands of sqlline that have no effect, with the reason.
_COMMANDS: Final[dict[str, str]] = {
    **dict.fromkeys(("brief", "outputformat", "verbose", "set", "scan", "record", "script", "history"), _SHOWN),
    **dict.fromkeys(("help", "manual", "list", "typeinfo", "dbinfo", "metadata"), _SHOWN),
    **dict.fromkeys(("connect", "reconnect", "close", "closeall", "go", "nickname", "properties"), _CONNECTED),
    **dict.fromkeys(("quit", "exit"), "the script ends where its text ends"),
    **dict.fromkeys(("autocommit", "isolation"), "BEGIN ISOLATION LEVEL … and COMMIT delimit transactions"),
    **dict.fromkeys(("save", "rehash", "addlisteners"), "it only concerns sqlline itself"),
    "run": "give the other script to watersmeet run before this one",
    "tables": "SHOW TABLES lists them",
    "columns": "DESCRIBE name lists them",
    "describe": "DESCRIBE name lists the columns",
    "primarykeys": "SHOW CREATE TABLE name shows the key",
    "indexes": "SHOW INDEXES lists them",
    "procedures": "SHOW FUNCTIONS lists the functions",
}

#: Commands of sqlline that change something, with the statement to write instead.
_STATEMENTS: Final[dict[str, str]] = {
    "all": "Run the statement on each connection.",
    "batch": "Write the statements without it.",
    "call": "Write a query: procedures are not supported.",
    "commit": "Write COMMIT.",
    "dropall": "Write DROP SCHEMA name CASCADE.",
    "kill": "Write KILL QUERY 'id'.",
    "rollback": "Write ROLLBACK.",
    "sql": "Write the statement without it.",
}

_COMMAND: Final = re.compile(r"!(\w+)\s*([^;]*?)[\s;]*\Z")


def read_command(base: dict[str, Any]) -> Statement:
    """Reads a command of sqlline, which is a line: `!set force on`. Raises SYNTAX_ERROR for an unknown command."""
    found = _COMMAND.match(base["sql"])
    name, rest = (found[1].lower(), found[2]) if found is not None else ("", "")
    forced = re.fullmatch(r"force\s+(\w+)", rest, re.IGNORECASE) if name == "set" else None
    if forced is not None:
        return SetVariable(**base, name=CONTINUES, value=forced[1])
    if name in _STATEMENTS:
        refusal = not_supported(f"!{name}", base["text"], base["span"], hint=_STATEMENTS[name])
        return Refused(**base, error=refusal)
    if name not in _COMMANDS:
        raise error(
            "SYNTAX_ERROR",
            f'there is no command "!{name}" of sqlline',
            sql=base["text"],
            span=base["span"],
            hint=did_you_mean(name, [*_COMMANDS, *_STATEMENTS]),
        )
    return Accepted(**base, command="", notice=f"!{name} has no effect: {_COMMANDS[name]}")


_IN_CATALOG: Final = re.compile(rf'^"?{CATALOG}"?\.', re.IGNORECASE)


def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SET PATH, SET CATALOG and `SET SCHEMA 'LOCALDB.name'`; returns None for other variables. The cursor stands
    after SET.
    """
    if cursor.take("SCHEMA"):
        span = span_of(cursor.rest[:1] or cursor.tokens)
        written = cursor.string()
        name = unquoted(_IN_CATALOG.sub("", written), cursor.folding)
        cursor.end()
        return SetVariable(**base, name="search_path", value=None, schema=Name(name, span))
    if cursor.take("PATH"):
        read_value(cursor)
        while cursor.take(","):
            read_value(cursor)
        cursor.end()
        reason = "functions are found in the schema of SET SCHEMA; others need their schema in front"
        return Accepted(**base, command="SET", notice=f"SET PATH has no effect: {reason}")
    if not cursor.take("CATALOG"):
        return None
    span = span_of(cursor.rest[:1] or cursor.tokens)
    if read_value(cursor).strip('"').upper() != CATALOG:
        hint = f"There is one, {CATALOG}; CREATE SCHEMA makes a schema in it."
        return Refused(**base, error=not_supported("another catalog", cursor.text, span, hint=hint))
    cursor.end()
    return Accepted(**base, command="SET", notice=f"SET CATALOG has no effect: {CATALOG} is the only catalog")


_PLAN: Final[dict[tuple[str, ...], dict[str, Any]]] = {
    ("EXCLUDING", "ATTRIBUTES"): {},
    ("INCLUDING", "ALL", "ATTRIBUTES"): {"verbose": True},
    ("INCLUDING", "ATTRIBUTES"): {"verbose": True},
    ("WITH", "IMPLEMENTATION"): {},
    ("WITHOUT", "IMPLEMENTATION"): {"level": "logical"},
    ("WITH", "TYPE"): {},
    ("AS", "JSON"): {"format": "json"},
}


def read_explain(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `EXPLAIN PLAN [options] FOR statement`; returns None for another EXPLAIN. The cursor stands after EXPLAIN.

    The plan is Watersmeet's; for an INSERT it is the plan of its query.
    """
    if not cursor.take("PLAN"):
        return None
    wanted: dict[str, Any] = {}
    while not cursor.take("FOR"):
        if cursor.at("AS", "XML"):
            refusal = not_supported(
                "EXPLAIN PLAN AS XML", cursor.text, span_of(cursor.rest[:2]), hint="Write AS JSON, or no format."
            )
            return Refused(**base, error=refusal)
        words = next((words for words in _PLAN if cursor.take(*words)), None)
        if words is None:
            raise cursor.error(detail="FOR was expected here.")
        wanted |= _PLAN[words]
    if cursor.at("INSERT", "INTO") or cursor.at("INSERT", "EXPEDITED", "INTO"):
        cursor.until("SELECT", "VALUES", "WITH")
    return Explain(**base, statement=cursor.statement(), **wanted)


#: The settings of the database that ALTER SYSTEM can set.
_OWN_SETTINGS: Final = ("RETENTION", "TIME_TRAVEL_RETENTION_MS", "CLOCK")


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `ALTER SYSTEM SET` and `ALTER SESSION SET` of parameters of s-Server; returns None for others."""
    start = cursor.index
    for words in (("SYSTEM", "SET"), ("SESSION", "SET")):
        if not cursor.take(*words):
            continue
        if words[0] == "SYSTEM" and any(cursor.at(name) for name in _OWN_SETTINGS):
            break
        name = cursor.name(reserved=True).name
        cursor.expect("=")
        read_value(cursor)
        cursor.end()
        command = f"ALTER {words[0]}"
        notice = f'{command} SET has no effect: parameter "{name}" is one of s-Server'
        return Accepted(**base, command=command, notice=notice)
    cursor.index = start
    if cursor.at("SYSTEM") and not cursor.at("SYSTEM", "SET"):
        hint = "It manages the server's code and catalog. ALTER SYSTEM SET sets a parameter."
        refusal = not_supported("ALTER SYSTEM other than SET", cursor.text, span_of(cursor.rest[:2]), hint=hint)
        return Refused(**base, error=refusal)
    return None


def read_statistics(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `ANALYZE TABLE name {COMPUTE | ESTIMATE} STATISTICS FOR …`; the cursor stands after ANALYZE."""
    cursor.expect("TABLE")
    cursor.relation_name()
    if not cursor.take("COMPUTE"):
        cursor.expect("ESTIMATE")
    cursor.expect("STATISTICS")
    cursor.until("")
    return Accepted(
        **base, command="ANALYZE", notice="ANALYZE has no effect: the order of joins does not depend on statistics"
    )


def read_checkpoint(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `CHECKPOINT [DATABASE]`; the cursor stands after CHECKPOINT."""
    cursor.take("DATABASE")
    cursor.end()
    return Accepted(**base, command="CHECKPOINT", notice="CHECKPOINT has no effect: each commit is on disk")


def read_import(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Refuses IMPORT FOREIGN SCHEMA; the cursor stands after IMPORT."""
    cursor.expect("FOREIGN", "SCHEMA")
    hint = "CREATE FOREIGN TABLE name SERVER server OPTIONS (\"TABLE_NAME\" '…') has the columns of one table."
    span = span_of(cursor.tokens[:3])
    return Refused(**base, error=not_supported("IMPORT FOREIGN SCHEMA", cursor.text, span, hint=hint))


def read_call(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Refuses CALL; the cursor stands after CALL."""
    hint = "Procedures are Java classes of s-Server. A query can call functions (CREATE FUNCTION)."
    return Refused(**base, error=not_supported("CALL", cursor.text, span_of(cursor.tokens), hint=hint))
