"""Where buckets live: the executor on which each of them is to run, because its state is there. Decisions alone.

State is files that any executor can read. So a home is only a wish, and what is known here may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

#: In one epoch so many buckets at most, or this part of all, move to executors that have fewer than others: each of
#: them begins cold.
_MOVES: Final = 2
_MOVED_PART: Final = 8

#: A stage and a bucket.
Step = tuple[int, int]


@dataclass(frozen=True)
class Executor:
    """id: Spark's, which no other executor of the application ever has. cores: how many tasks it runs at a time."""

    id: str
    host: str
    cores: int = 1


class Returns(NamedTuple):
    """How many steps of an epoch ran on the executor that ran them last (local), and on another one (moved)."""

    local: int = 0
    moved: int = 0


@dataclass(frozen=True)
class Homes:
    """The homes of all buckets, in their order; none before the first epoch that is cut by buckets.

    last: the id of the executor that ran each step last, be it in a task of its own or in one that ran all of them.
    """

    of: tuple[Executor, ...] = ()
    last: Mapping[Step, str] = field(default_factory=dict)

    def settled(self, buckets: int, executors: Collection[Executor]) -> Homes:
        """As an epoch of so many buckets is to run, on executors that are there.

        Law: every home is one of `executors`; there is none if that is empty. Buckets whose home is gone get another
        one at once, on the same machine if that is as good. Of the others only a few move, and only to an executor
        that has less to do, with the bucket, than the one that had it.
        """
        there = {e.id: e for e in sorted(executors, key=lambda e: e.id)}
        if not there:
            return replace(self, of=())
        before = self.of if len(self.of) == buckets else _resized(self.of, buckets)
        homes: list[Executor | None] = [there.get(e.id) for e in before] if before else [None] * buckets
        load = Counter(e.id for e in homes if e is not None)
        for bucket, home in enumerate(homes):
            if home is None:
                host = before[bucket].host if before else None
                best = min(there.values(), key=lambda e: (_load(e, load, 1), e.host != host))
                homes[bucket] = best
                load[best.id] += 1
        found = [e for e in homes if e is not None]
        for _ in range(max(_MOVES, buckets // _MOVED_PART)):
            fullest = max(there.values(), key=lambda e: _load(e, load))
            emptiest = min(there.values(), key=lambda e: _load(e, load, 1))
            if _load(emptiest, load, 1) >= _load(fullest, load):
                break
            found[found.index(fullest)] = emptiest
            load[fullest.id] -= 1
            load[emptiest.id] += 1
        return replace(self, of=tuple(found))

    def of_all(self, executors: Collection[Executor]) -> Executor | None:
        """Where an epoch that is one task is to run: where most steps ran last. None if no such executor is there."""
        there = {e.id: e for e in executors}
        ran = Counter(i for i in self.last.values() if i in there)
        return there[min(ran, key=lambda i: (-ran[i], i))] if ran else None

    def after(self, ran: Mapping[Step, str], executors: Collection[Executor], *, apart: bool) -> Homes:
        """After an epoch. ran: by step, the id of the executor that ran it. apart: each step was a task of its own.

        Who ran a bucket in a task of its own is its home now: the one before had no time for it.
        """
        there = {e.id: e for e in executors}
        homes = list(self.of)
        for (_, bucket), executor in sorted(ran.items()):
            if apart and bucket < len(homes) and executor in there:
                homes[bucket] = there[executor]
        return Homes(tuple(homes), {**self.last, **ran})

    def returns(self, ran: Mapping[Step, str]) -> Returns:
        """How many of these steps came back. Steps that never ran before count nowhere."""
        same = [self.last[step] == executor for step, executor in ran.items() if step in self.last]
        return Returns(sum(same), len(same) - sum(same))


def _load(executor: Executor, load: Mapping[str, int], more: int = 0) -> float:
    """The buckets of each of its cores, with so many more."""
    return (load.get(executor.id, 0) + more) / max(1, executor.cores)


def _resized(homes: Sequence[Executor], buckets: int) -> Sequence[Executor]:
    """The homes for another number of buckets: each is a range of hashes, and so are those before it."""
    return [homes[bucket * len(homes) // buckets] for bucket in range(buckets)] if homes else ()
