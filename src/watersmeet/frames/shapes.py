"""What a join of two DataFrames is asked to do: plain values, the same on the driver, in every task and in the
state.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final, Literal

from watersmeet.circuit.operators import BACKWARD, FORWARD, AsofComparison, InputColumn, JoinKind
from watersmeet.types import Schema

Emit = Literal["changes", "final", "arrival"]

#: The names of the two sides, as sources of watermarks and in messages.
SIDES: Final = ("left", "right")


@dataclass(frozen=True)
class Side:
    """One input. schema: the columns that travel: the user's, then the start of its window if the join has windows.

    keys: positions of what must be equal. time: position of its event time, or None. delay_us: how far its watermark
    stays behind the greatest event time, or None without a watermark. signed: rows may be taken back: each has a diff.
    """

    schema: Schema
    keys: tuple[int, ...]
    time: int | None = None
    delay_us: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class Tolerance:
    """How far two values may be apart, the bound included. us: of times, in microseconds. number: of numbers, written.

    Without either there is no bound.
    """

    us: int | None = None
    number: str | None = None


@dataclass(frozen=True)
class Nearest:
    """Of the right rows with `left value comparison right value` the nearest one, if it is within `tolerance`."""

    comparison: AsofComparison
    left: int
    right: int
    tolerance: Tolerance = Tolerance()

    @property
    def looks_back(self) -> bool:
        """Whether smaller right values count."""
        return self.comparison in BACKWARD

    @property
    def looks_ahead(self) -> bool:
        """Whether greater right values count."""
        return self.comparison in FORWARD


@dataclass(frozen=True)
class Newest:
    """The right row of the key that came last; of rows that came together the one with the greatest column `order`."""

    order: int | None = None


@dataclass(frozen=True)
class Within:
    """`lower_us <= right time - left time <= upper_us`; None: without bound."""

    lower_us: int | None
    upper_us: int | None


@dataclass(frozen=True)
class ResultColumn:
    """A column of the result: the first value that is not NULL of these columns of both sides.

    window: a struct of start and end, from the start of a window.
    """

    name: str
    columns: tuple[InputColumn, ...]
    window: bool = False


@dataclass(frozen=True)
class JoinShape:
    """A join. buckets: how many parts the keys are cut into, each with its own state, for ever."""

    left: Side
    right: Side
    how: JoinKind
    emit: Emit
    buckets: int
    outputs: tuple[ResultColumn, ...]
    match: Nearest | Newest | None = None
    within: Within | None = None
    window_us: int | None = None
    static: Literal["left", "right"] | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left and right."""
        return self.left, self.right

    @cached_property
    def columns(self) -> tuple[InputColumn, ...]:
        """The joined columns that the result is made of, each once."""
        return tuple(dict.fromkeys(c for o in self.outputs for c in o.columns))

    @cached_property
    def fingerprint(self) -> str:
        """Names all that the state depends on."""
        values = asdict(self)
        for name, side in (("left", self.left), ("right", self.right)):
            values[name]["schema"] = [f.to_json() for f in side.schema]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def microseconds(delta: timedelta) -> int:
    """A length of time in microseconds."""
    return delta // timedelta(microseconds=1)
