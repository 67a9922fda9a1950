"""Settings of PostgreSQL that clients read and set, beside the session's own variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import watersmeet
from watersmeet.catalog.roles import ADMIN, Actor
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import ALIASES, APPLICATION, LIMITS, amount, check_limit, shown, unit
from watersmeet.errors import error

#: The version of PostgreSQL whose protocol and catalog are answered; tools read the number in front.
SERVER_VERSION: Final = "16.0"

_TRUE: Final = ("on", "true", "yes", "1")
_FALSE: Final = ("off", "false", "no", "0")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    choices: the values that it takes, in lower case, the default among them; None: any. fixed: no SET changes it.
    reported: clients are told whenever it changes.
    """

    name: str
    default: str
    choices: tuple[str, ...] | None = ()
    fixed: bool = False
    reported: bool = False


def _fixed(name: str, value: str, *, reported: bool = False) -> Setting:
    return Setting(name, value, fixed=True, reported=reported)


_SETTINGS: Final = (
    _fixed("server_version", f"{SERVER_VERSION} (Watersmeet {watersmeet.__version__})", reported=True),
    _fixed("server_version_num", "160000"),
    _fixed("server_encoding", "UTF8", reported=True),
    Setting("client_encoding", "UTF8", ("utf8", "utf-8", "unicode"), reported=True),
    Setting("DateStyle", "ISO, MDY", ("iso, mdy", "iso", "iso, ymd", "iso, dmy"), reported=True),
    Setting("IntervalStyle", "postgres", reported=True),
    _fixed("integer_datetimes", "on", reported=True),
    Setting("standard_conforming_strings", "on", _TRUE, reported=True),
    Setting("escape_string_warning", "on", (*_TRUE, *_FALSE)),
    Setting("bytea_output", "hex"),
    Setting("xmloption", "content"),
    Setting("default_transaction_isolation", "read committed", ("read committed", "read uncommitted")),
    Setting("transaction_isolation", "read committed", ("read committed", "read uncommitted")),
    Setting("default_transaction_read_only", "off", _FALSE, reported=True),
    Setting("transaction_read_only", "off", (*_TRUE, *_FALSE)),
    Setting("transaction_deferrable", "off", _FALSE),
    Setting("default_transaction_deferrable", "off", _FALSE),
    *(Setting(name, "0") for name in LIMITS),
    Setting("lock_timeout", "0", ("0",)),
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

_BY_NAME: Final = {s.name.lower(): s for s in _SETTINGS}

#: Variables of the session of whose change clients are told, by PostgreSQL's names of them.
_SESSION: Final = {"TimeZone": "timezone", APPLICATION: APPLICATION, "search_path": "search_path"}


class Saved(NamedTuple):
    """What is set at one moment: settings, variables of the session, the role as which it acts."""

    values: Mapping[str, str]
    variables: dict[str, str]
    role: Actor | None


class Settings:
    """The settings of one connection, with the session's variables behind them."""

    def __init__(self, session: Session, user: str, begun: Mapping[str, str], limits: Mapping[str, str]) -> None:
        """begun: values from which the connection begins. limits: values of `LIMITS` that the user can't go beyond."""
        self._session = session
        self._values = dict(begun)
        self._local: dict[str, str] = {}
        self._kept: dict[str, str] = {}
        self._begun = dict(begun)
        self._user = user
        self._limits = limits

    @staticmethod
    def known(name: str) -> bool:
        """Whether it is a setting of PostgreSQL that is no variable of the session."""
        return name.lower() in _BY_NAME or name.lower() == "session_authorization"

    def begin(self) -> None:
        """What is set now is what RESET goes back to."""
        self._begun = dict(self._values)

    def get(self, name: str) -> str:
        """The value of a setting or of a variable of the session. UNDEFINED_OBJECT."""
        lowered = name.lower()
        if lowered == "session_authorization":
            return self._user
        if lowered == "role":
            role = self._session.role
            return "none" if role is None or role == self._session.user else role.name
        if lowered == "is_superuser":
            return "on" if self._session.role is None or self._session.rights.has(ADMIN) else "off"
        if lowered in ("default_transaction_read_only", "transaction_read_only") and self._session.database.read_only:
            return "on"
        if lowered == "transaction_read_only" and self._session.transaction is not None:
            return "on" if self._session.transaction.read_only else "off"
        if lowered in _BY_NAME:
            return self._local.get(lowered) or self._values.get(lowered, _BY_NAME[lowered].default)
        return self._session.variables.get(ALIASES.get(lowered, lowered))

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Sets a setting, or a variable of the session; None: to its default.

        PERMISSION_DENIED for what is beyond the user's limits, INVALID_PARAMETER, FEATURE_NOT_SUPPORTED for a value
        that is PostgreSQL's, but not Watersmeet's.
        """
        lowered = name.lower()
        if lowered not in _BY_NAME:
            if local:
                self.keep(name)
            self._session.variables.set(name, value)
            return
        setting = _BY_NAME[lowered]
        if value is None or value.lower() == "default":
            self._values.pop(lowered, None)
            self._local.pop(lowered, None)
            if lowered in self._begun:
                self._values[lowered] = self._begun[lowered]
            return
        if lowered in LIMITS:
            check_limit(lowered, value, self._limits.get(lowered))
        (self._local if local else self._values)[lowered] = _checked(setting, value)

    def reset(self) -> None:
        """Sets everything to what it was at the beginning, but the dialect."""
        self._values = dict(self._begun)
        self._local.clear()

    def keep(self, name: str) -> None:
        """A variable of the session is about to be set for the transaction alone. UNDEFINED_OBJECT."""
        self._kept.setdefault(name, self._session.variables.get(name))

    def end_transaction(self) -> None:
        """Forgets what was set for the transaction alone."""
        self._local.clear()
        for name, value in self._kept.items():
            self._session.variables.set(name, value)
        self._kept.clear()

    def saved(self) -> Saved:
        """What is set now, with the role."""
        return Saved(dict(self._values), self._session.variables.saved(), self._session.role)

    def restore(self, saved: Saved) -> None:
        """Sets what was set then."""
        self._values = dict(saved.values)
        self._session.variables.restore(saved.variables)
        self._session.role = saved.role
        self._kept.clear()

    def limit(self, name: str) -> int:
        """The value of one of `LIMITS`; 0: none."""
        return amount(name, self.get(name))

    def reported(self) -> dict[str, str]:
        """The settings that clients follow, by name."""
        own = {s.name: self.get(s.name) for s in _SETTINGS if s.reported}
        return {**own, **{n: self.get(v) for n, v in _SESSION.items()}, "session_authorization": self._user}

    def rows(self) -> list[tuple[str, str, str | None]]:
        """Name, value and unit of all of them, and of the variables that are settings in PostgreSQL. The value of a
        limit is a number, as `pg_settings` has it.
        """
        names = [*(s.name for s in _SETTINGS), *_SESSION]
        return [(n, str(self.limit(n)), unit(n)) if n in LIMITS else (n, self.get(n), None) for n in names]

    def shown(self) -> dict[str, str]:
        """The values that SHOW gives, by name in lower case."""
        return {name.lower(): self.get(name) for name, _, _ in self.rows()}


def _checked(setting: Setting, value: str) -> str:
    lowered = re.sub(r"\s*,\s*", ", ", value.lower().strip())
    if setting.fixed:
        raise error("INVALID_PARAMETER", f'parameter "{setting.name}" cannot be changed')
    if setting.name in LIMITS:
        return shown(setting.name, amount(setting.name, value))
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
