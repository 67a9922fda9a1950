"""What an arrangement gives its readers in one epoch: its change, and its content before.

All readers of a stage see the same two, whichever of them runs first: the content before is a list of runs, which
nobody ever modifies, so that the arrangement may take in the change at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

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
    def old(self) -> list[Run]:
        """Pure runs of the content before."""
        return parts(self._before())

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
