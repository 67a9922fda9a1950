"""Session variables: the names that SET and SHOW know, with RisingWave's defaults.

A variable without `effect` is accepted, because scripts written for another system set it, and says so in a
notice: the results are the same, only that system's way of getting them would differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.algebra.durations import timeout_us
from watersmeet.binder.settings import JOIN_ROWS_SETTING
from watersmeet.catalog import MOST_JOIN_ROWS
from watersmeet.dialects.registry import DIALECTS, language_named
from watersmeet.errors import did_you_mean, error

#: The variable that says which SQL is spoken.
DIALECT: Final = "dialect"
#: The variable that says after how long a silent topic holds nobody back; empty for never.
IDLE_DEFAULT: Final = "defaults.topic.watermark_idle_timeout"

Kind = Literal["boolean", "integer", "text", "interval"]

_TRUE: Final = ("true", "t", "on", "yes", "1")
_FALSE: Final = ("false", "f", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `choices`: the values of a text variable, lower case; empty for any. `least`: of an integer.

    system: that has it.
    """

    name: str
    kind: Kind
    default: str
    description: str
    effect: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    system: str = "RisingWave"


def _flag(name: str, default: bool, description: str, effect: bool = False) -> Variable:
    return Variable(name, "boolean", "true" if default else "false", description, effect)


#: Sorted by name.
VARIABLES: Final[dict[str, Variable]] = {
    v.name: v
    for v in (
        Variable("application_name", "text", "", "Name of the program, for the reader of a log.", effect=True),
        Variable("backfill_rate_limit", "text", "default", "Rows per second while a new view reads its history."),
        _flag("batch_enable_lookup_join", True, "Lookup joins in batch queries."),
        Variable("client_min_messages", "text", "notice", "Smallest level of message that the client gets."),
        _flag("defaults.topic.autocreate", False, "A processor makes its target topic (Lenses).", effect=True),
        Variable(
            "defaults.topic.partitions",
            "integer",
            "1",
            "Partitions of topics that are made for processors (Lenses).",
            effect=True,
            least=1,
        ),
        Variable(
            "defaults.topic.replication",
            "integer",
            "1",
            "Copies of topics that are made for processors (Lenses).",
            least=1,
            system="Lenses",
        ),
        Variable(
            IDLE_DEFAULT,
            "interval",
            "",
            "How long a new topic may be silent before it holds nobody back any more; empty: for ever (Lenses).",
            effect=True,
        ),
        Variable(DIALECT, "text", "risingwave", "SQL that is spoken: " + ", ".join(DIALECTS) + ".", effect=True),
        _flag("enable_index_selection", True, "Index choice for temporal and lookup joins."),
        _flag("enable_join_ordering", True, "Reorder inner joins; false keeps the written order.", effect=True),
        _flag("enable_locality_backfill", True, "Sort the history of a new view by join key."),
        _flag("enable_share_plan", True, "Share equal subplans."),
        Variable("extra_float_digits", "integer", "1", "Digits of floating-point output."),
        _flag("implicit_flush", False, "INSERT, UPDATE and DELETE wait until all views show their rows.", effect=True),
        Variable(
            JOIN_ROWS_SETTING,
            "integer",
            str(MOST_JOIN_ROWS),
            "Rows that each join of a new view may make in one epoch, or else the view fails; 0 is any number.",
            effect=True,
            least=0,
        ),
        Variable("query_mode", "text", "auto", "How batch queries run.", choices=("auto", "local", "distributed")),
        Variable("search_path", "text", '"$user", public', "Schemas in which names are looked up.", effect=True),
        _flag("sink_decouple", True, "Log in front of sinks."),
        Variable("statement_timeout", "integer", "0", "Seconds after which a batch query is ended; 0 is never."),
        _flag("streaming_asof_join_use_cache", True, "Cache of ASOF joins."),
        _flag("streaming_enable_bushy_join", True, "Bushy instead of left-deep join trees.", effect=True),
        _flag("streaming_enable_delta_join", False, "Delta joins over indexes."),
        _flag(
            "streaming_enable_multiway_join",
            True,
            "Inner joins by one key are one operator without rows in between.",
            True,
        ),
        _flag("streaming_enable_unaligned_join", False, "Let barriers overtake a join."),
        _flag("streaming_force_filter_inside_join", False, "Keep residual conditions in the join."),
        Variable(
            "streaming_join_encoding",
            "text",
            "",
            "Row encoding of join state.",
            choices=("", "cpu_optimized", "memory_optimized"),
        ),
        Variable("streaming_parallelism", "text", "default", "Parallelism of new views."),
        _flag("streaming_separate_consecutive_join", False, "An exchange between consecutive joins."),
        _flag(
            "streaming_share_arrangements", True, "Joins of new views read arrangements that other views keep.", True
        ),
        _flag("streaming_use_arrangement_backfill", True, "Arrangement backfill."),
        _flag("streaming_use_snapshot_backfill", True, "Snapshot backfill."),
        Variable(
            "timezone",
            "text",
            "UTC",
            "Zone in which timestamptz values are shown and computed.",
            effect=True,
            choices=("utc", "etc/utc", "gmt", "+00:00", "0"),
        ),
    )
}

#: Other spellings. `rw_` before any name is understood too.
ALIASES: Final = {"time zone": "timezone", "time_zone": "timezone"}


class Variables:
    """The variables of one connection."""

    def __init__(self, dialect: str) -> None:
        """The defaults, and the dialect that the connection was made for."""
        self._values: dict[str, str] = {DIALECT: dialect}

    def get(self, name: str) -> str:
        """The value of `name` as text. Raises UNDEFINED_OBJECT."""
        variable = find(name)
        return self._values.get(variable.name, variable.default)

    def is_on(self, name: str) -> bool:
        """The value of a boolean variable."""
        return self.get(name) == "true"

    def set(self, name: str, value: str | None) -> Variable:
        """Sets `name` to the text `value`, None for its default. Raises UNDEFINED_OBJECT, INVALID_PARAMETER."""
        variable = find(name)
        if value is None or value.lower() == "default":
            if variable.name == DIALECT:
                raise error(
                    "INVALID_PARAMETER", "there is no default dialect", hint="Name one: " + ", ".join(DIALECTS) + "."
                )
            self._values.pop(variable.name, None)
        else:
            self._values[variable.name] = _checked(variable, value)
        return variable

    def saved(self) -> dict[str, str]:
        """What is set now, for `restore`."""
        return dict(self._values)

    def restore(self, saved: dict[str, str]) -> None:
        """Set back what was set when `saved` was taken."""
        self._values = dict(saved)

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and description of all variables, sorted by name."""
        return [(v.name, self.get(v.name), v.description) for v in VARIABLES.values()]


def find(name: str) -> Variable:
    """The variable called `name`, in any of its spellings. Raises UNDEFINED_OBJECT."""
    lowered = name.lower()
    lowered = ALIASES.get(lowered, lowered)
    for candidate in (lowered, lowered.removeprefix("rw_")):
        if candidate in VARIABLES:
            return VARIABLES[candidate]
    raise error(
        "UNDEFINED_OBJECT",
        f'unknown session variable "{name}"',
        hint=did_you_mean(lowered, VARIABLES) or "SHOW ALL lists the variables.",
    )


def _checked(variable: Variable, value: str) -> str:
    lowered = value.lower()
    if variable.name == DIALECT:
        return language_named(lowered).name
    if variable.kind == "boolean":
        if lowered in _TRUE:
            return "true"
        if lowered in _FALSE:
            return "false"
        raise error("INVALID_PARAMETER", f'{variable.name} is true or false, not "{value}"')
    if variable.kind == "interval":
        if value and timeout_us(value) is None:
            raise error(
                "INVALID_PARAMETER",
                f'{variable.name} can\'t be "{value}"',
                hint="It is an interval above zero of fixed length, such as '10s'.",
            )
        return value
    if variable.kind == "integer":
        try:
            number = int(value)
        except ValueError:
            raise error("INVALID_PARAMETER", f'{variable.name} is a whole number, not "{value}"') from None
        if variable.least is not None and number < variable.least:
            raise error("INVALID_PARAMETER", f"{variable.name} is at least {variable.least}, not {number}")
        return str(number)
    if variable.choices and lowered not in variable.choices:
        if variable.name == "timezone":
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'time zone "{value}" is not supported',
                hint="Sessions are in UTC. Use AT TIME ZONE to see a value in another zone.",
            )
        raise error(
            "INVALID_PARAMETER",
            f'{variable.name} can\'t be "{value}"',
            hint="Choose one of " + ", ".join(c or "''" for c in variable.choices) + ".",
        )
    return value
