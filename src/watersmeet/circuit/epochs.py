"""The kinds of epochs: the operators that run, their input, and their state.

| | runs | reads | state of an operator |
|---|---|---|---|
| `Start` | all operators | new input | none yet |
| `Live` | all operators, except those of views that are being filled | new input | that of the previous epoch |
| `Recompute` | as in `Live` | new input; some operators read content | made again for these, otherwise as in `Live` |
| `Fill` | those with a role | history | by its role |
| `Rebuild` | all operators | history | made again, next to the one in use |
| `Rescale`, `SplitKeys` | none | nothing | that of the previous epoch, moved to other buckets |
| `Refresh`, `StopViews` | none | nothing | that of the previous epoch |

`Start` is the first micro-batch of a join of DataFrames, which has no history; a database has all other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from watersmeet.values.serialization import kinds
from watersmeet.values.types import Schema

#: The values whose hash determines the bucket of a row; each is the first non-NULL value of some columns.
Keys = tuple[tuple[int, ...], ...]

#: The name for all traces of an operator that have no name of their own.
OTHERS: Final = ""


@dataclass(frozen=True)
class StateDistribution:
    """The distribution of a trace's rows over the buckets.

    how: `keyed`: each row is in the bucket of its `keys` (positions in the trace), without keys in bucket 0.
    `anywhere`: each row is in an arbitrary bucket; `keys` are all columns. `copied`: every bucket has all rows.
    `pooled`: each bucket has some rows, which count for all buckets.
    """

    how: Literal["keyed", "anywhere", "copied", "pooled"]
    keys: Keys = ()


#: The prefixes of an operator's id under which state of a fill is stored: what the operator makes of history, and its
#: live state as of the beginning of the fill, which refers to the same runs.
COPY: Final = "scratch!"
CLONE: Final = "clone!"

#: The roles of operators in a fill. `new`: only the views that are being filled have it, and its state begins with the
#: fill. All others are also operators of live views, which keep their state: `copied`: it computes history again, in
#: `COPY`. `replayed`: an arrangement that outputs its rows again. `cloned`: it processes later changes, in `CLONE`.
Role = Literal["new", "copied", "replayed", "cloned"]


@dataclass(frozen=True)
class Mode:
    """The base class of kinds of epochs. By default all operators run with the state of the previous epoch."""

    kind: ClassVar[str]
    #: Whether operators read history instead of new input.
    reads_history: ClassVar[bool] = False

    @property
    def is_filling(self) -> bool:
        """Whether operators process their input as history, in which nothing is late and no row has arrived yet."""
        return self.reads_history

    @property
    def as_of(self) -> AsOf | None:
        """The moment as of which operators process their input, if that is not the one of the epoch."""
        return None

    @property
    def is_first(self) -> bool:
        """Whether constants and empty aggregates output their rows."""
        return False

    @property
    def stored(self) -> Mapping[str, StoredContent]:
        """The stored content, by operator, that replaces the output of an operator that does not run."""
        return {}

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        """Whether the operator runs."""
        return True

    def begins(self, operator_id: str) -> bool:  # noqa: ARG002
        """Whether this is the first step in the life of the operator's state."""
        return self.is_first

    def may_be_new(self, operator_id: str) -> bool:  # noqa: ARG002
        """Whether the operator may have no state yet."""
        return False

    def completes(self, operator_id: str) -> bool:  # noqa: ARG002
        """Whether the operator has no history left to read after the last piece of a history."""
        return True

    def state_id(self, operator_id: str) -> str:
        """The id under which the operator's state is stored."""
        return operator_id

    def epoch_of(self, operator_id: str, epoch: int) -> int:  # noqa: ARG002
        """The number of the epoch for the operator. epoch: that of the epoch that runs."""
        return epoch

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        """The ids of the state that is kept. Other state was dropped, or remains from an earlier attempt.

        operator_ids: the ids of the circuit's operators.
        """
        return operator_ids


@dataclass(frozen=True)
class Start(Mode):
    """The first epoch of a circuit without history."""

    kind: ClassVar[str] = "start"

    @property
    def is_first(self) -> bool:
        return True

    def may_be_new(self, operator_id: str) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True)
class ClockInput:
    """A time of each row of a relation: the column `name`, or a field below it (`details.at`).

    reads: if given, `name` is DuckDB SQL in which `c<i>` is column i of `reads`.
    """

    name: str
    reads: Schema = ()


@dataclass(frozen=True)
class Live(Mode):
    """All views process new input.

    idle, overrides: the idle inputs and overrides that move the sources' watermarks in addition to their rows (see
    `runtime.eventtimes`). clocks: by relation and name of an additional watermark, the time whose greatest value is
    this watermark. without: the operators of views that are being filled beside live ones, which don't run. later: the
    idle inputs that only these views read; their watermarks move when the epoch is replayed. silent: the clocks that
    only these views have and that may rise because their relation is idle (`values.watermarks.Idle`), each with the
    time of its relation's last rows.
    """

    kind: ClassVar[str] = "live"
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, Mapping[str, ClockInput]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    later: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def _waiting(self) -> frozenset[str]:
        return frozenset(self.without)

    def runs(self, operator_id: str) -> bool:
        return operator_id not in self._waiting

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        return operator_ids | {p + i for i in operator_ids for p in (COPY, CLONE)} if self.without else operator_ids


@dataclass(frozen=True)
class Recompute(Live):
    """A live epoch in which some operators begin again: without state, from the present content of their inputs.

    Sinks among them output the new content of their views; the commit has its difference from the old content.
    operators: the operators that begin again. A join among them may read arrangements that don't, whose rows are
    earlier content for it. emptied: relations from which a transaction has deleted all earlier rows. These operators
    only read its inserted rows.
    """

    kind: ClassVar[str] = "recompute"
    operators: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()

    @cached_property
    def _again(self) -> frozenset[str]:
        return frozenset(self.operators)

    def begins(self, operator_id: str) -> bool:
        return operator_id in self._again

    def may_be_new(self, operator_id: str) -> bool:
        return operator_id in self._again

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        return super().kept_state(operator_ids) - self._again


@dataclass(frozen=True)
class StoredContent:
    """The content of a relation, read instead of the output of the operator that feeds its sink.

    keys: see `Keys`.
    """

    relation_id: str
    keys: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class AsOf:
    """An earlier moment, as of which a fill processes its input because its result depends on it.

    time_us: the time of epochs. own: the names of the watermarks that only the fill moves, because no live view reads
    their relations. before, after: the other watermarks before and after the moment. is_live: whether a live epoch is
    replayed, and epoch is its number; otherwise the input is history, which is_end says is complete. clocks, idle,
    overrides: as in `Live`, for the watermarks in `own`.
    """

    time_us: int
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    is_live: bool = False
    is_end: bool = False
    clocks: Mapping[str, Mapping[str, ClockInput]] = field(default_factory=dict)
    epoch: int = 0
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)

    def mixed(self, newest: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
        """Watermarks: `own` ones from the newest epoch, and `others`."""
        return {**others, **{i: newest[i] for i in self.own if i in newest}}


@dataclass(frozen=True)
class Fill(Mode):
    """New views read history; live views do not change.

    first: the first epoch of the fill. roles: the role of each running operator. content: for each operator that does
    not run, the relation whose content its readers read. part, until, parts: replayed arrangements output the rows in
    the ranges of hashes from number `part` up to, not including, `until`, out of `parts`. beside: whether epochs of
    live views run between those of the fill. moment: see `Mode.as_of`. clones: the operators of which the first epoch
    makes clones. waiting: the operators that store all their history, or for an aggregate sums of it, before
    they process any. phase, levels: the present phase, and for each operator the one in which it reads history, see
    `Filling.phases`; `waiting` ones process it in the next phase. Without levels, they do so in the last piece.
    """

    kind: ClassVar[str] = "fill"
    reads_history: ClassVar[bool] = True
    first: bool
    roles: Mapping[str, Role]
    content: Mapping[str, StoredContent] = field(default_factory=dict)
    part: int = 0
    parts: int = 0
    beside: bool = False
    moment: AsOf | None = None
    until: int = 0
    clones: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    phase: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_filling(self) -> bool:
        return self.moment is None or not self.moment.is_live

    @property
    def as_of(self) -> AsOf | None:
        return self.moment

    @property
    def is_first(self) -> bool:
        return self.first

    @property
    def stored(self) -> Mapping[str, StoredContent]:
        return self.content

    def having(self, role: Role) -> frozenset[str]:
        """The operators with a role."""
        return frozenset(i for i, r in self.roles.items() if r == role)

    def runs(self, operator_id: str) -> bool:
        return operator_id in self.roles

    def may_be_new(self, operator_id: str) -> bool:
        role = self.roles.get(operator_id)
        return role == "new" or (role == "copied" and self.first)

    def outputs(self, operator_id: str) -> bool:
        """Whether this is the phase in which a waiting operator processes its history."""
        return operator_id in self.levels and self.phase == self.levels[operator_id] + 1

    def completes(self, operator_id: str) -> bool:
        return self.phase >= self.levels.get(operator_id, 0)

    def state_id(self, operator_id: str) -> str:
        role = self.roles.get(operator_id)
        if role == "copied":
            return COPY + operator_id
        return CLONE + operator_id if role == "cloned" or (role == "replayed" and self.beside) else operator_id

    def epoch_of(self, operator_id: str, epoch: int) -> int:
        if self.moment is None or not self.moment.is_live or self.roles.get(operator_id) != "cloned":
            return epoch
        return self.moment.epoch  # so that its output equals that of the live operator

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        if self.first:
            return operator_ids - self.having("new")
        return operator_ids | {COPY + i for i in self.having("copied")} | {CLONE + i for i in operator_ids}


@dataclass(frozen=True)
class Rebuild(Mode):
    """All state is computed again from history. No content changes, and no changes are published.

    first: the first epoch of the rebuild.
    """

    kind: ClassVar[str] = "rebuild"
    reads_history: ClassVar[bool] = True
    first: bool

    @property
    def is_first(self) -> bool:
        return self.first

    def may_be_new(self, operator_id: str) -> bool:  # noqa: ARG002
        return True

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        return frozenset() if self.first else operator_ids


@dataclass(frozen=True)
class Rescale(Mode):
    """Moves the state of all operators to another number of buckets, and has no other effect.

    distributions: the distribution of rows by stateful operator and trace (or `OTHERS`).
    """

    kind: ClassVar[str] = "rescale"
    distributions: Mapping[str, Mapping[str, StateDistribution]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class SplitKeys(Mode):
    """Moves the rows of keys whose split begins or ends, and has no other effect.

    split: the hashes of the split keys by spread side; see `runtime.splitting`.
    """

    kind: ClassVar[str] = "splitkeys"
    split: Mapping[str, tuple[int, ...]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Refresh(Mode):
    """Views run on, with the operators and the content of hidden views that were filled for them.

    Each view's content changes only by the difference. made: the hidden views by view. catalog: the name of the stored
    catalog that becomes the newest in the same commit, with the views' new definitions; empty if they stay.
    """

    kind: ClassVar[str] = "refresh"
    made: Mapping[str, str]
    catalog: str = ""

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class StopViews(Mode):
    """Stops views. It may also set the time of epochs back to the machine's clock.

    stopped: for each view, the error that it shows until it runs again.
    """

    kind: ClassVar[str] = "stopviews"
    stopped: Mapping[str, dict[str, Any]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


kinds(Mode, {cls.kind: cls for cls in (Start, Live, Recompute, Fill, Rebuild, Rescale, SplitKeys, Refresh, StopViews)})
