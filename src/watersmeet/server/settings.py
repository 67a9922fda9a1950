"""Settings of PostgreSQL that clients read and set, in addition to the session's own variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import watersmeet
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import (
    APPLICATION,
    ISOLATION,
    LIMITS,
    QUANTITIES,
    Variables,
    amount,
    as_shown,
    check_limit,
    find,
)
from watersmeet.database.transaction import ISOLATIONS, set_modes
from watersmeet.dialects.variables import Variable
from watersmeet.errors import error
from watersmeet.values import POSTGRES_VERSION

_TRUE: Final = ("on", "true", "yes", "1")
_FALSE: Final = ("off", "false", "no", "0")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    choices: the accepted values, in lower case, including the default; None for any. fixed: whether SET can't change
    it. reported: whether clients are notified of changes.
    """

    name: str
    default: str
    choices: tuple[str, ...] | None = ()
    fixed: bool = False
    reported: bool = False


def _fixed(name: str, value: str, *, reported: bool = False) -> Setting:
    return Setting(name, value, fixed=True, reported=reported)


_SETTINGS: Final = (
    _fixed("server_version", f"{POSTGRES_VERSION} (Watersmeet {watersmeet.__version__})", reported=True),
    _fixed("server_version_num", "150000"),
    _fixed("server_encoding", "UTF8", reported=True),
    Setting("client_encoding", "UTF8", ("utf8", "utf-8", "unicode"), reported=True),
    Setting("DateStyle", "ISO, MDY", ("iso, mdy", "iso", "iso, ymd", "iso, dmy"), reported=True),
    Setting("IntervalStyle", "postgres", reported=True),
    _fixed("integer_datetimes", "on", reported=True),
    Setting("standard_conforming_strings", "on", _TRUE, reported=True),
    Setting("escape_string_warning", "on", (*_TRUE, *_FALSE)),
    Setting("bytea_output", "hex"),
    Setting("xmloption", "content"),
    Setting(ISOLATION, "read committed", ISOLATIONS),
    Setting("transaction_isolation", "read committed", ISOLATIONS),
    Setting("default_transaction_read_only", "off", _FALSE, reported=True),
    Setting("transaction_read_only", "off", (*_TRUE, *_FALSE)),
    Setting("transaction_deferrable", "off", _FALSE),
    Setting("default_transaction_deferrable", "off", _FALSE),
    *(Setting(name, "0", None) for name in LIMITS),
    Setting("lock_timeout", "0"),
    Setting("transaction_timeout", "0"),
    Setting("tcp_keepalives_idle", "0", None),
    Setting("client_connection_check_interval", "0", None),
    Setting("row_security", "off", (*_TRUE, *_FALSE)),
    Setting("session_replication_role", "origin"),
    Setting("synchronous_commit", "on", _TRUE),
    Setting("synchronize_seqscans", "off", (*_TRUE, *_FALSE)),
    Setting("jit", "off", (*_TRUE, *_FALSE)),
    Setting("work_mem", "4MB", None),
    Setting("maintenance_work_mem", "64MB", None),
    Setting("geqo", "off", (*_TRUE, *_FALSE)),
    _fixed("max_identifier_length", "63"),
    _fixed("max_index_keys", "32"),
    _fixed("block_size", "8192"),
    _fixed("lc_collate", "C"),
    _fixed("lc_ctype", "C"),
    Setting("lc_messages", "C"),
    Setting("lc_monetary", "C"),
    Setting("lc_numeric", "C"),
    Setting("lc_time", "C"),
    _fixed("is_superuser", "on", reported=True),
    _fixed("in_hot_standby", "off", reported=True),
    _fixed("port", "5432"),
    _fixed("max_connections", "100"),
    _fixed("wal_level", "logical"),
    _fixed("password_encryption", "scram-sha-256"),
    _fixed("role", "none"),
    Setting("default_tablespace", ""),
    Setting("default_table_access_method", "heap"),
    Setting("check_function_bodies", "on", (*_TRUE, *_FALSE)),
)

_BY_NAME: Final = {s.name.lower(): s for s in (*_SETTINGS, _fixed("session_authorization", ""))}

#: The settings that are on in a read-only server. Clients with several addresses find the writer by them.
_OF_READERS: Final = ("default_transaction_read_only", "transaction_read_only", "in_hot_standby")

#: Session variables that are reported to clients, by PostgreSQL's names.
_SESSION: Final = {"TimeZone": "timezone", APPLICATION: APPLICATION, "search_path": "search_path"}


class Settings(Variables):
    """The settings of PostgreSQL, followed by the variables of a client's session.

    begun: initial values of the connection. limits: values of `LIMITS` that the user can't exceed.
    """

    #: The session with these settings, which is set once.
    session: Session

    def __init__(self, dialect: str, user: str, begun: Mapping[str, str], limits: Mapping[str, str]) -> None:
        super().__init__(dialect)
        self._values.update(begun)
        self._user = user
        self._limits = limits

    def get(self, name: str) -> str:
        """The value of a setting or of a variable of the session. Raises UNDEFINED_OBJECT."""
        lowered, session = name.lower(), self.session
        if lowered == "session_authorization":
            return self._user
        if lowered == "role":
            return "none" if session.role is None or session.role == session.user else session.role.name
        if lowered == "is_superuser":
            return "on" if session.role is None or session.rights.has(ADMIN) else "off"
        if lowered in _OF_READERS and session.database.read_only:
            return "on"
        if lowered == "transaction_isolation":
            return self.isolation if session.transaction is None else session.transaction.isolation
        if lowered == "transaction_read_only" and session.transaction is not None:
            return "on" if session.transaction.read_only else "off"
        return super().get(name)

    def set(self, name: str, value: str | None) -> Variable:
        """Sets a setting, or a variable of the session; None sets the default.

        Raises PERMISSION_DENIED for a value beyond the user's limits, INVALID_PARAMETER, FEATURE_NOT_SUPPORTED for a
        value that only PostgreSQL supports.
        """
        setting = _known(name)
        if setting is None:
            return super().set(name, value)
        variable = self.named(name)
        if value is None or value.lower() == "default":
            self.put_back({variable.name: self._begun.get(variable.name)})
            return variable
        if variable.name == "transaction_isolation":
            level = _checked(setting, value)
            if self.session.transaction is not None:
                set_modes(self.session.transaction, next(n for n in ISOLATIONS if n == level), None)
            return variable
        if variable.name in LIMITS:
            check_limit(variable.name, value, self._limits.get(variable.name))
        self._values[variable.name] = _checked(setting, value)
        return variable

    def named(self, name: str) -> Variable:
        """A setting as a variable, or a variable. Raises UNDEFINED_OBJECT."""
        return self._custom(name) or _named(name)

    def limit(self, name: str) -> int:
        """The value of one of `QUANTITIES` in its unit; 0 for no limit."""
        return amount(name, self.get(name))

    def reported(self) -> dict[str, str]:
        """The values of all reported settings."""
        own = {s.name: self.get(s.name) for s in _SETTINGS if s.reported}
        return {**own, **{n: self.get(v) for n, v in _SESSION.items()}, "session_authorization": self._user}

    def listed(self) -> list[tuple[str, str, str | None]]:
        """Name, value and unit of all settings, of the variables that are settings in PostgreSQL, and of those of the
        client's own. The value of a duration or size is a number, as in `pg_settings`.
        """
        names = [*(s.name for s in _SETTINGS), *_SESSION, *(n for n in self._values if "." in n)]
        return [
            (n, str(self.limit(n)), QUANTITIES[n].unit) if n in QUANTITIES else (n, self.get(n), None) for n in names
        ]


@lru_cache(512)
def _named(name: str) -> Variable:
    setting = _known(name)
    return find(name) if setting is None else Variable(setting.name.lower(), "text", setting.default, "", True)


def _known(name: str) -> Setting | None:
    """The setting of PostgreSQL of that name; None for a variable of the session."""
    return _BY_NAME.get(name.lower().removeprefix("rw_"))


def _checked(setting: Setting, value: str) -> str:
    lowered = re.sub(r"\s*,\s*", ", ", value.lower().strip())
    if setting.fixed:
        raise error("INVALID_PARAMETER", f'parameter "{setting.name}" cannot be changed')
    if setting.name in QUANTITIES:
        value = lowered = as_shown(setting.name, value)
    if lowered == setting.default.lower():
        return setting.default
    if setting.choices is None:
        return value
    choices = setting.choices or (setting.default.lower(),)
    if lowered not in choices:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'{setting.name} can\'t be "{value}"',
            hint="It takes: " + ", ".join(f'"{c}"' if "," in c else c for c in choices) + ".",
        )
    if set(choices) <= {*_TRUE, *_FALSE}:
        return "on" if lowered in _TRUE else "off"
    return setting.default if setting.name in ("client_encoding", "DateStyle") else lowered
