"""A checker of histories: what clients of one server saw, against what the server promises (docs/CLIENTS.md).

Clients append numbers to lists, and read them. A number is appended once, so a list tells which transactions wrote it,
and in which order (as Elle does it). What is promised:

1. A transaction's appends are there all at once, when it is committed, and never if it is not.
2. There is one order of commits. Each statement reads what the first so many of them left, and its transaction's own
   appends.
3. In a transaction, that is at least all that was acknowledged when the statement began.
4. What one connection reads never goes back, in its transactions and outside of them, each for itself.
5. Of two transactions that change the same table, the one whose COMMIT came first wins, and the other fails, if it had
   changed the table before.
6. All reads of a transaction with REPEATABLE READ or SERIALIZABLE are of one moment, which is at least all that was
   acknowledged when it began. Promise 5 then counts from this moment.
7. A SERIALIZABLE transaction that changes something reads what the commits before its own left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Read:
    """A statement that read lists: of several keys at one moment. began, ended: of the clock that all clients share."""

    began: int
    ended: int
    lists: dict[str, tuple[int, ...]]


@dataclass
class Append:
    """An append of a number to the list of a key."""

    began: int
    ended: int
    key: str
    number: int


@dataclass
class Transaction:
    """What a client did. alone: each of its statements stands outside of a transaction of its own, which is none then.
    isolation: its level.

    committed: None where the answer to COMMIT was lost. began, ended: of COMMIT.
    """

    client: int
    steps: list[Read | Append] = field(default_factory=list)
    alone: bool = False
    committed: bool | None = False
    began: int = 0
    ended: int = 0
    isolation: str = "READ COMMITTED"

    @property
    def has_snapshot(self) -> bool:
        """Whether all its reads are of one moment."""
        return self.isolation in ("REPEATABLE READ", "SERIALIZABLE")

    @property
    def appends(self) -> list[Append]:
        """Its appends in order."""
        return [s for s in self.steps if isinstance(s, Append)]


def table_of(key: str) -> str:
    """The table that has the list of a key: `a3` is in table `a`."""
    return key[0]


def problems(history: Sequence[Transaction], final: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What of a history is not as it is promised. final: the lists at its end."""
    found = [*_lists(history, final)]
    return found or [*_order(history, final), *_winners(history)]


def _lists(history: Sequence[Transaction], final: Mapping[str, tuple[int, ...]]) -> Iterable[str]:
    """Promise 1, and that each list is a beginning of the last one."""
    writers = {a.number: t for t in history for a in t.appends}
    for key, numbers in final.items():
        if len(set(numbers)) < len(numbers):
            yield f"{key} has a number twice: {numbers}"
        for number in numbers:
            if number not in writers:
                yield f"{key} has {number}, which nobody appended"
            elif writers[number].committed is False:
                yield f"{key} has {number}, whose transaction was not committed"
    for transaction in history:
        there = {a.number: a.number in final.get(a.key, ()) for a in transaction.appends}
        if transaction.committed is True and not all(there.values()):
            yield f"of a committed transaction there are {there}"
        if len(set(there.values())) > 1:
            yield f"a part of a transaction is there: {there}"
        for read in transaction.steps:
            if isinstance(read, Read):
                yield from _read(transaction, read, final)


def _read(transaction: Transaction, read: Read, final: Mapping[str, tuple[int, ...]]) -> Iterable[str]:
    for key, numbers in read.lists.items():
        others, own = _split(transaction, read, key, numbers)
        wanted = [a.number for a in transaction.appends if a.key == key and a.ended < read.began]
        if own != wanted:
            yield f"a transaction that appended {wanted} to {key} read {numbers}"
        if final.get(key, ())[: len(others)] != others:
            yield f"{key} was read as {numbers}, and is {final.get(key)} at the end"


def _split(
    transaction: Transaction, read: Read, key: str, numbers: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """What others appended, and what the transaction itself had appended by then."""
    mine = {a.number for a in transaction.appends if a.key == key and a.ended < read.began}
    place = next((i for i, n in enumerate(numbers) if n in mine), len(numbers))
    return numbers[:place], list(numbers[place:])


Node = tuple[str, int]


def _order(history: Sequence[Transaction], final: Mapping[str, tuple[int, ...]]) -> Iterable[str]:
    """Promises 2 to 4: the order in which all happened, as far as it is known, has no circle."""
    edges: dict[Node, set[Node]] = defaultdict(set)
    commits = {a.number: ("commit", i) for i, t in enumerate(history) for a in t.appends}
    for numbers in final.values():
        for before, after in pairwise(numbers):
            if commits[before] != commits[after]:
                edges[commits[before]].add(commits[after])
    seen: dict[tuple[int, bool], Node] = {}
    number = 0
    for index, transaction in enumerate(history):
        begun: list[tuple[int, Node]] = []
        for step in transaction.steps:
            if not isinstance(step, Read):
                continue
            if not (transaction.has_snapshot and begun):
                number += 1
                node = ("read", number)
                if transaction.isolation == "SERIALIZABLE" and transaction.committed is True and transaction.appends:
                    node = ("commit", index)
            for key, numbers in step.lists.items():
                others, _ = _split(transaction, step, key, numbers)
                if others and commits[others[-1]] != node:
                    edges[commits[others[-1]]].add(node)
                following = final.get(key, ())[len(others) :]
                after = next((commits[n] for n in following if commits[n] != ("commit", index)), None)
                if after is not None:
                    edges[node].add(after)
            before = seen.get((transaction.client, transaction.alone))
            if before not in (None, node):
                edges[before].add(node)
            seen[transaction.client, transaction.alone] = node
            begun.append((transaction.steps[0].began if transaction.has_snapshot else step.began, node))
        if not transaction.alone:
            for moment, node in begun:
                edges["time", moment].add(node)
        if transaction.committed is True and transaction.appends:
            edges["commit", index].add(("time", transaction.ended))
    moments = sorted({n[1] for n in (*edges, *(m for ms in edges.values() for m in ms)) if n[0] == "time"})
    for earlier, later in pairwise(moments):
        edges["time", earlier].add(("time", later))
    circle = _circle(edges)
    if circle:
        yield f"there is no order of {' → '.join(f'{kind} {n}' for kind, n in circle)}"


def _circle(edges: Mapping[Node, set[Node]]) -> list[Node]:
    """Nodes that come before each other; none if there is an order of all."""
    state: dict[Node, int] = {}
    for start in list(edges):
        if start in state:
            continue
        state[start] = 1
        path = [(start, iter(sorted(edges[start])))]
        while path:
            node, following = path[-1]
            after = next(following, None)
            if after is None:
                state[node] = 2
                path.pop()
            elif state.get(after) == 1:
                names = [n for n, _ in path]
                return [*names[names.index(after) :], after]
            elif after not in state:
                state[after] = 1
                path.append((after, iter(sorted(edges.get(after, ())))))
    return []


def _winners(history: Sequence[Transaction]) -> Iterable[str]:
    """Promise 5."""
    committed = [t for t in history if t.committed is True and t.appends]
    for transaction in committed:
        for table in {table_of(a.key) for a in transaction.appends}:
            first = min(a.ended for a in transaction.appends if table_of(a.key) == table)
            if transaction.has_snapshot:
                first = transaction.steps[0].ended
            for other in committed:
                changed = any(table_of(a.key) == table for a in other.appends)
                if other is not transaction and changed and first < other.began and other.ended < transaction.began:
                    yield f"two transactions changed table {table} beside each other, and both were committed"
