"""What an arrangement gives its readers in one epoch: its change, and its content before.

All readers of a stage see the same two, whichever of them runs first: the content before is a list of runs, which
nobody ever modifies, so that the arrangement may take in the change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.matching import Probe, parts, probes
from watersmeet.kernel.runs.run import Run


class Arranged:
    """One epoch of an arrangement.

    change: changes of the rows that can match, as a run. null_keys: those of rows with a NULL in the key, which
    the arrangement does not keep; not consolidated. before: gives the runs of the content before; asked at most once.
    exact: see `Probe`.
    """

    def __init__(self, change: Run, null_keys: Delta, before: Callable[[], tuple[Run, ...]], *, exact: bool) -> None:
        self.change = change
        self.null_keys = null_keys
        self.exact = exact
        self._before = before

    @property
    def num_rows(self) -> int:
        """The number of changes."""
        return self.change.num_rows + self.null_keys.num_rows

    @cached_property
    def runs_before(self) -> tuple[Run, ...]:
        """The runs of the content before."""
        return self._before()

    @cached_property
    def old(self) -> list[Run]:
        """Pure runs of the content before."""
        return parts(self.runs_before)

    @cached_property
    def changes(self) -> list[Run]:
        """The change as pure runs."""
        return parts([self.change])

    @property
    def new(self) -> list[Run]:
        """Pure runs of the content after."""
        return [*self.old, *self.changes]

    @cached_property
    def probes(self) -> list[Probe]:
        """The keys of the change."""
        return probes(self.changes, exact=self.exact)

    @cached_property
    def net_null_keys(self) -> Delta:
        """`null_keys`, consolidated."""
        return consolidate(self.null_keys)


class _Near(Arranged):
    """The same with the content before of some keys only. What is known of the change is shared."""

    def __init__(self, whole: Arranged, hashes: Callable[[], Hashes]) -> None:
        super().__init__(
            whole.change, whole.null_keys, lambda: tuple(near(whole.runs_before, hashes)), exact=whole.exact
        )
        self._whole = whole

    @cached_property
    def old(self) -> list[Run]:
        return self._whole.old if self.runs_before == self._whole.runs_before else parts(self.runs_before)

    @cached_property
    def changes(self) -> list[Run]:
        return self._whole.changes

    @cached_property
    def probes(self) -> list[Probe]:
        return self._whole.probes

    @cached_property
    def net_null_keys(self) -> Delta:
        return self._whole.net_null_keys


def near_changes(inputs: Sequence[Arranged], own: Sequence[bool]) -> list[Arranged]:
    """The inputs, all by the same key, as an operator sees them that asks each for no keys but those that change in
    another. own: by input, whether it is also asked for those that change in itself.
    """

    def changed(number: int) -> Hashes:
        return np.concatenate(
            [a.change.hash[: 0 if i == number and not own[i] else None] for i, a in enumerate(inputs)]
        )

    return [_Near(a, partial(changed, i)) for i, a in enumerate(inputs)]
