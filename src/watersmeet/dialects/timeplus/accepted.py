"""Statements of Timeplus whose purpose Watersmeet decides itself: each is accepted with a notice, or refused with the
way round. EXISTS, TRUNCATE, SHOW CREATE without a kind, SETTINGS after statements that are not queries.

Timeplus, "Statements".
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot.tokens import Token

from watersmeet.catalog import SHOWN_CREATED
from watersmeet.dialects.statements.dml import read_dml
from watersmeet.dialects.timeplus.inlinedata import FORMATS, read_inline
from watersmeet.dialects.timeplus.storage import TUNING, TUNING_REASON, no_effect
from watersmeet.dialects.tree.definitions import PauseView, TruncateStream
from watersmeet.dialects.tree.statements import Accepted, Exists, Show, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_setting, read_value, refused, span_of

_ONE: Final = "a database has one writer"

#: Statements after SYSTEM that have no effect, with the reason; the longer words first.
_SYSTEM: Final[dict[str, str]] = {
    "RECOVER MATERIALIZED VIEW": "REFRESH MATERIALIZED VIEW computes a stopped view again",
    "TRANSFER LEADER": _ONE,
    "SET LOG LEVEL": "logging is set where the process is started",
    "FLUSH LOGS": "metrics and errors are written as they arise",
    "FLUSH DISTRIBUTED": "each INSERT is one commit, which is on disk when it returns",
    "STOP MERGES": "merges of files are bounded in each epoch",
    "START MERGES": "merges of files are bounded in each epoch",
    "DROP": "caches are bounded, and follow their files",
    "RELOAD": "definitions and functions apply as soon as their statement returns",
    "SYNC REPLICA": _ONE,
}

#: Objects that SHOW lists in Timeplus and that Watersmeet lacks, each with the way round.
_LISTS: Final[dict[str, str]] = {
    "DISKS": "The database is in one directory or object store.",
    "ALERTS": "SHOW SUBSCRIPTIONS lists what is delivered to clients.",
    "TASKS": "A materialized view is always up to date.",
    "INPUTS": "SHOW STREAMS lists external streams, which read topics.",
    "USERS": "SHOW ROLES lists users.",
    "CLUSTERS": "SHOW WORKERS lists the threads of this process.",
}

#: Statements that Watersmeet lacks, by their first word, each with the way round.
LACKING: Final[dict[str, str]] = {
    "ATTACH": "A database consists of all files of its directory.",
    "BACKUP": "Copy the directory of the database, or keep it in an object store.",
    "CHECK": "watersmeet check reads a script without running it.",
    "DETACH": "Drop the object.",
    "EXCHANGE": "RENAME STREAM renames one stream.",
    "RESTORE": "Copy the directory of the database.",
    "UNDROP": "A dropped object can't be restored.",
    "WATCH": "SELECT … FROM a stream runs until it is closed.",
}


def read_system(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads SYSTEM …; the cursor stands after SYSTEM."""
    for word in ("PAUSE", "RESUME", "UNPAUSE"):
        if cursor.take(word, "MATERIALIZED", "VIEW"):
            name = cursor.relation_name()
            cursor.take("PERMANENT")
            cursor.end()
            return PauseView(**base, name=name, pause=word == "PAUSE")
    for words, reason in _SYSTEM.items():
        if not cursor.take(*words.split()):
            continue
        view = cursor.relation_name() if words.endswith("VIEW") and not cursor.done else None
        cursor.until("")
        return Accepted(**base, command="SYSTEM", notice=no_effect(f"SYSTEM {words}", reason), of=view)
    words = " ".join(t.text.upper() for t in cursor.rest[:2])
    return refused(cursor, base, f"SYSTEM {words}", hint="SHOW JOBS, SHOW ERRORS and SHOW MEMORY show the state.")


def read_optimize(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads OPTIMIZE STREAM name …; the cursor stands after OPTIMIZE."""
    if not cursor.take("STREAM"):
        cursor.expect("TABLE")
    name = cursor.relation_name()
    if any(word.text.upper() == "DEDUPLICATE" for word in cursor.until("")):
        cursor.index = len(cursor.tokens) - 1
        hint = "A stream of mode versioned_kv keeps one row of each key."
        return refused(cursor, base, "OPTIMIZE … DEDUPLICATE", hint=hint)
    notice = no_effect("OPTIMIZE", "Watersmeet merges its files itself")
    return Accepted(**base, command="OPTIMIZE", notice=notice, of=name)


def read_truncate(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads TRUNCATE [STREAM] [IF EXISTS] name; the cursor stands after TRUNCATE."""
    _without_settings(cursor, base)
    if not cursor.take("STREAM"):
        cursor.take("TABLE")
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    cursor.end()
    return TruncateStream(**base, name=name, if_exists=if_exists)


def read_exists(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads EXISTS [kind] name; the cursor stands after EXISTS."""
    cursor.take("TEMPORARY")
    words = ("database", "external stream", "mutable stream", *SHOWN_CREATED)
    kind = next((w for w in words if len(cursor.rest) > len(w.split()) and cursor.take(*w.upper().split())), "")
    name = cursor.name(reserved=True) if kind == "database" else cursor.relation_name()
    cursor.end()
    return Exists(**base, name=name, kind=kind)


def read_show(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SHOW CREATE name, and lists of objects that Watersmeet lacks; returns None for others."""
    _without_settings(cursor, base)
    cursor.take("FULL")
    for word, hint in _LISTS.items():
        if cursor.at(word):
            return refused(cursor, base, f"SHOW {word}", hint=hint)
    if cursor.at("SETTINGS"):
        cursor.index += 1
        return Show(**base, what="all", like=_like(cursor))
    if cursor.at("CREATE") and len(cursor.rest) in (2, 4):  # a name, or database.name
        begin = cursor.index
        cursor.index += 1
        name = cursor.relation_name()
        if cursor.done:
            return Show(**base, what="create relation", name=name)
        cursor.index = begin
    return None


def _like(cursor: Cursor) -> str | None:
    like = cursor.string() if cursor.take("LIKE") or cursor.take("ILIKE") else None
    cursor.end()
    return like


def read_described(cursor: Cursor, base: dict[str, Any]) -> None:
    """Reads SETTINGS at the end of DESCRIBE and DROP; the rest is read as in every dialect."""
    _without_settings(cursor, base)


def _without_settings(cursor: Cursor, base: dict[str, Any]) -> None:
    """Takes `SETTINGS name = value, …` away from the end of a statement. Notices that they have no effect are in
    `base`.
    """
    begin = cursor.index
    if not cursor.done:
        cursor.index += 1  # `SHOW SETTINGS`
        cursor.until("SETTINGS")
    last = cursor.index
    if cursor.take("SETTINGS") and not cursor.done:
        settings: dict[str, str] = {}
        while not settings or cursor.take(","):
            read_setting(cursor, settings)
        cursor.end()
        base["notices"] = tuple(no_effect(f"setting {name}", TUNING_REASON) for name in settings)
        cursor.tokens = cursor.tokens[:last]
    cursor.index = begin


def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SET of settings that never change a result; returns None for other settings."""
    begin, notices = cursor.index, list[str]()
    while not notices or cursor.take(","):
        if cursor.done:
            break
        name = cursor.name(reserved=True).name
        if name == _DELIMITER:
            hint = "Write it where it applies: INSERT … SETTINGS format_csv_delimiter = '|' FORMAT CSV …, "
            hint += "SELECT … FROM file(…) SETTINGS …, CREATE EXTERNAL STREAM … SETTINGS …."
            return refused(cursor, base, f"SET {_DELIMITER}", hint=hint)
        if name not in TUNING or not cursor.take("="):
            cursor.index = begin
            return None
        read_value(cursor)
        notices.append(no_effect(f"setting {name}", TUNING_REASON))
    cursor.end()
    return Accepted(**base, command="SET", notices=tuple(notices))


_DELIMITER: Final = "format_csv_delimiter"


def _delimiter(cursor: Cursor, value: str) -> str:
    """The character between fields of CSV. Raises INVALID_PARAMETER for another text."""
    if len(value) != 1 or value in "\"'\r\n":
        span = span_of(cursor.tokens[cursor.index - 1 : cursor.index])
        raise cursor.error_at(span, "INVALID_PARAMETER", f"{_DELIMITER} is one character, and no quote")
    return value


def read_insert(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SETTINGS and FORMAT before the rows of an INSERT; returns None for an INSERT without them."""
    begin, kept, notices, delimiter = cursor.index, list[Token](), list[str](), ","
    if cursor.take("INSERT", "INTO", "FUNCTION") or cursor.take("INSERT", "INTO", "TABLE", "FUNCTION"):
        name = cursor.rest[0].text if cursor.rest else ""
        hint = "Create an external table or stream of the same system, and INSERT INTO that; COPY … TO writes a file."
        return refused(cursor, base, f"INSERT INTO FUNCTION {name}", hint=hint)
    while not cursor.done:
        kept += cursor.originals(cursor.until("SETTINGS", "FORMAT", *_ROWS))
        if any(map(cursor.at, _ROWS)):
            break
        if cursor.take("SETTINGS"):
            settings: dict[str, str] = {}
            while not settings or cursor.take(","):
                read_setting(cursor, settings)
            delimiter = _delimiter(cursor, settings.pop(_DELIMITER, delimiter))
            notices += [no_effect(f"setting {name}", TUNING_REASON) for name in settings]
        elif cursor.take("FORMAT") and not cursor.take("VALUES"):
            word = cursor.rest[0].text if cursor.rest else ""
            if word.lower() not in FORMATS:
                hint = "JSONEachRow, CSV, TSV and Values are supported; or COPY … FROM STDIN."
                return refused(cursor, base, f"INSERT … FORMAT {word}", hint=hint)
            return read_inline(cursor.over(kept), cursor, {**base, "notices": tuple(notices)}, delimiter)
        elif cursor.tokens[cursor.index - 1].text.upper() == "VALUES":
            kept += cursor.originals(cursor.tokens[cursor.index - 1 : cursor.index])
            break
    if not notices and not cursor.done and any(map(cursor.at, _ROWS)):
        cursor.index = begin
        return None
    inner = cursor.over([*kept, *cursor.originals(cursor.rest)])
    return read_dml(inner, {**base, "notices": tuple(notices)})


#: The words before the rows of an INSERT.
_ROWS: Final = ("VALUES", "SELECT", "WITH")

READERS: Final = {
    "INSERT": read_insert,
    **dict.fromkeys(("DESC", "DESCRIBE", "DROP"), read_described),
    "EXISTS": read_exists,
    "OPTIMIZE": read_optimize,
    "SET": read_set,
    "SHOW": read_show,
    "SYSTEM": read_system,
    "TRUNCATE": read_truncate,
}
