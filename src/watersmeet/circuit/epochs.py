"""What an epoch is: which operators of a circuit run, what they read and which state they have.

| | runs | reads | state of an operator |
|---|---|---|---|
| `Start` | all operators | what is new | none yet |
| `Live` | all operators | what is new | that of the epoch before |
| `Fill` | those with a role | history | by its role |
| `Rebuild` | all operators | history | made anew beside that which is in use |
| `Rescale`, `SplitKeys` | none | nothing | that of the epoch before, handed to other buckets |
| `Refresh`, `ResetClock` | none | nothing | that of the epoch before |

A database has epochs of all kinds but the first. `Start` is the first micro-batch of a join of DataFrames, which has no
history.

Where the rows are that operators keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from watersmeet.values.serialization import kinds

#: The values by whose hash a row is in its bucket: each the first of some columns that is not NULL.
Keys = tuple[tuple[int, ...], ...]

#: The name that stands for all traces of an operator that are not named.
OTHERS: Final = ""


@dataclass(frozen=True)
class Placing:
    """In which buckets the rows of a trace are.

    how: `keyed`: each in the bucket of its `keys`, positions in the trace; no keys: all in bucket 0. `anywhere`: each
    in one of them, no matter which; `keys` are all columns. `copied`: every bucket has all of them. `pooled`: each
    bucket has some, and what any of them has is true for all.
    """

    how: Literal["keyed", "anywhere", "copied", "pooled"]
    keys: Keys = ()


#: The state of a copy of an operator is under the operator's id with this before it.
COPY: Final = "scratch!"

#: `new`: only the views that are filled have it; its state begins with the fill. `copied`: live views have it, too; it
#: runs on a copy of its state, which goes afterwards. `replayed`: an arrangement of live views, which gives its readers
#: what it keeps; its state stays as it is.
Role = Literal["new", "copied", "replayed"]


@dataclass(frozen=True)
class Mode:
    """Base of the kinds of epochs: all operators run, with the state of the epoch before."""

    kind: ClassVar[str]
    #: Whether operators read what was there before, rather than what is new.
    reads_history: ClassVar[bool] = False

    @property
    def is_first(self) -> bool:
        """True if operators begin: constants and empty aggregates give their rows."""
        return False

    @property
    def stored(self) -> Mapping[str, StoredContent]:
        """By operator that does not run: what its readers get in place of what it would give."""
        return {}

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        """True if the operator runs."""
        return True

    def may_be_new(self, operator_id: str) -> bool:  # noqa: ARG002
        """True if the operator may have no state yet."""
        return False

    def state_id(self, operator_id: str) -> str:
        """Under which id the operator's state is."""
        return operator_id

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        """The ids of state that is kept. Of all other there is left what was dropped, or an earlier attempt made.

        operator_ids: those of the circuit.
        """
        return operator_ids


@dataclass(frozen=True)
class Start(Mode):
    """The first epoch of a circuit that reads what is new."""

    kind: ClassVar[str] = "start"

    @property
    def is_first(self) -> bool:
        return True

    def may_be_new(self, operator_id: str) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True)
class Live(Mode):
    """All views follow what is new.

    idle, overrides: what moves the sources' watermarks beside their rows, see `runtime.idleness`. clocks: by relation,
    by name of a watermark of its own, the column whose greatest time it is.
    """

    kind: ClassVar[str] = "live"
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredContent:
    """The content of a relation, read in place of what the operator below its sink would give again.

    keys: by whose hash its rows go to the buckets: each the first of some columns that is not NULL.
    """

    relation_id: str
    keys: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Fill(Mode):
    """New views read history; live views stand still.

    first: the first epoch of the fill. roles: of the operators that run. content: by operator that does not run because
    the content of a relation stands for it. part, parts: replayed arrangements give what they keep in `parts` epochs,
    of which this is number `part`; from number `parts` on they have given all.
    """

    kind: ClassVar[str] = "fill"
    reads_history: ClassVar[bool] = True
    first: bool
    roles: Mapping[str, Role]
    content: Mapping[str, StoredContent] = field(default_factory=dict)
    part: int = 0
    parts: int = 0

    @property
    def is_first(self) -> bool:
        return self.first

    @property
    def stored(self) -> Mapping[str, StoredContent]:
        return self.content

    def having(self, role: Role) -> frozenset[str]:
        """The operators with that role."""
        return frozenset(i for i, r in self.roles.items() if r == role)

    def runs(self, operator_id: str) -> bool:
        return operator_id in self.roles

    def may_be_new(self, operator_id: str) -> bool:
        role = self.roles.get(operator_id)
        return role == "new" or (role == "copied" and self.first)

    def state_id(self, operator_id: str) -> str:
        return COPY + operator_id if self.roles.get(operator_id) == "copied" else operator_id

    def kept_state(self, operator_ids: frozenset[str]) -> frozenset[str]:
        if self.first:
            return operator_ids - self.having("new")
        return operator_ids | {COPY + i for i in self.having("copied")}


@dataclass(frozen=True)
class Rebuild(Mode):
    """All state is made anew from history, for content that stays as it is: nothing is published.

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
    """The circuit has another number of buckets from now on: what operators keep is handed to these, and nothing else
    happens.

    placings: by stateful operator, by trace (`OTHERS` for those that are not named), where its rows are.
    """

    kind: ClassVar[str] = "rescale"
    placings: Mapping[str, Mapping[str, Placing]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class SplitKeys(Mode):
    """Other keys are split from now on: their rows move, and nothing else happens.

    split: by driver, the hashes of its keys, see `splitting`.
    """

    kind: ClassVar[str] = "splitkeys"
    split: Mapping[str, tuple[int, ...]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Refresh(Mode):
    """Stopped views run again, with the operators and the content of hidden views that were filled for them.

    The epoch changes the content of each view by the difference only. made: the hidden views, by view.
    """

    kind: ClassVar[str] = "refresh"
    made: Mapping[str, str]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class ResetClock(Mode):
    """The time of epochs is that of the machine's clock again, though it was later before.

    stopped: by view whose operators follow the time of epochs, the error that it shows until it is refreshed.
    """

    kind: ClassVar[str] = "resetclock"
    stopped: Mapping[str, dict[str, Any]]

    def runs(self, operator_id: str) -> bool:  # noqa: ARG002
        return False


kinds(Mode, {cls.kind: cls for cls in (Start, Live, Fill, Rebuild, Rescale, SplitKeys, Refresh, ResetClock)})
