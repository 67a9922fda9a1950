"""What must be true of the files of a database at every moment, as read from the files alone.

It knows names and JSON, not what is in segments but for the names in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.world import Violation
from watersmeet.store.manifests import REBUILT

_FILE = re.compile(rb"[a-z0-9][a-z0-9-]*-[0-9a-f]{8,}\.(?:segment|run)")


_COMMIT = re.compile(r"commits/[0-9]{12}\.json")


class Audit:
    """names: gives the names of all files, as `folder/name`. read: the content of one. state: gives the files that the
    state lies in which a segment has of a "stage/bucket".
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        read: Callable[[str], bytes],
        state: Callable[[str, str], set[str]],
    ) -> None:
        self._names, self._read, self._state = names, read, state
        self._commits: dict[int, bytes] = {}
        """By number, the content of all that ever were part of the history."""
        self._parsed: dict[bytes, dict[str, Any]] = {}
        self._mentioned: dict[str, set[str]] = {}
        self._states: dict[tuple[str, str], set[str]] = {}

    def begin_anew(self) -> None:
        """After a loss of power: what nobody was told of may be gone."""
        self._commits.clear()

    def look(self) -> None:
        """Violation: a number has two contents, commits are missing, or a file that counts is."""
        names = set(self._names())
        low_water, reigns = self._low_water(names)
        history: dict[int, dict[str, Any]] = {}
        for name in sorted(n for n in names if _COMMIT.match(n)):
            data = self._read(name)
            commit = self._json(data)
            if not _is_kept(commit, low_water, reigns):
                continue
            number = commit["number"]
            if self._commits.setdefault(number, data) != data:
                raise Violation(f"commit {number} has two contents")
            history[number] = commit
        head = max(history, default=0)
        if head < max(self._commits, default=0):
            raise Violation(f"the history became shorter: commit {max(self._commits)} is gone")
        if gone := set(range(low_water + 1, head + 1)) - history.keys():
            raise Violation(f"commits {sorted(gone)} are missing below {head}, above low_water {low_water}")
        if head:
            missing = self._needed(names, history, history[head], low_water) - names
            if missing:
                raise Violation(f"missing, though a commit up to {head} names it: {', '.join(sorted(missing))}")
            if bare := self._without_plans(names, history[head]):
                raise Violation(f"no plan is there of {', '.join(sorted(bare))}")

    def garbage(self) -> set[str]:
        """What is there and is not needed by the newest commit, of what takes much room."""
        names = set(self._names())
        numbers = sorted(int(n[8:20]) for n in names if _COMMIT.match(n))
        history = {n: self._json(self._read(f"commits/{n:012d}.json")) for n in numbers}
        head = history[numbers[-1]]
        needed = self._needed(names, history, head, self._low_water(names)[0])
        return {n for n in names - needed if n.partition("/")[0] in ("segments", "snapshots")} | {
            n for n in names if "/.tmp-" in n
        }

    def _needed(
        self, names: set[str], history: dict[int, dict[str, Any]], head: dict[str, Any], low_water: int
    ) -> set[str]:
        needed: set[str] = set()
        lasting = (head["number"], head["last_epoch"], head["epoch_before"])
        for number, commit in history.items():
            if number <= low_water and number not in lasting:
                continue  # It is about to go, or a request that was done late brought it back.
            text = json.dumps(commit["relations"]).encode()
            needed |= {f"segments/{name}" for name in _named(text)}
            if number in (head["last_epoch"], head["epoch_before"]):
                needed.add(f"plans/{commit['circuit']}.json")
                for key, segment in commit["segments"].items():
                    needed.add(f"segments/{segment}")
                    if f"segments/{segment}" in names:
                        needed |= {f"segments/{name}" for name in self._files_of(segment, key.removeprefix(REBUILT))}
        if head["catalog"]:
            needed.add(f"catalog/{head['catalog']}.json")
        if head["checkpoint"]:
            checkpoint = f"snapshots/{head['checkpoint']:012d}.json"
            needed.add(checkpoint)
            if checkpoint in names:
                needed |= {f"segments/{name}" for name in self._mentions(checkpoint)}
        return needed

    def _without_plans(self, names: set[str], head: dict[str, Any]) -> set[str]:
        """The views that the newest commit knows, of which no writer's plan is there: a start would make it anew."""
        if not head["catalog"]:
            return set()
        known = self._json(self._read(f"catalog/{head['catalog']}.json"))["relations"]
        planned = {n.removeprefix("plans/").partition("-")[0] for n in names if n.startswith("plans/")}
        return {r["id"] for r in known if r["kind"] == "materialized view"} - planned

    def _mentions(self, name: str) -> set[str]:
        if name not in self._mentioned:
            self._mentioned[name] = _named(self._read(name))
        return self._mentioned[name]

    def _files_of(self, segment: str, place: str) -> set[str]:
        if (segment, place) not in self._states:
            self._states[segment, place] = self._state(segment, place)
        return self._states[segment, place]

    def _low_water(self, names: set[str]) -> tuple[int, list[Any]]:
        newest = max((n for n in names if n.startswith("low-water/") and "/.tmp-" not in n), default=None)
        if newest is None:
            return 0, []
        value = self._json(self._read(newest))
        return value["low_water"], value["reigns"]

    def _json(self, data: bytes) -> dict[str, Any]:
        if data not in self._parsed:
            self._parsed[data] = _filled(json.loads(data.split(b"\n")[1]))
        return self._parsed[data]


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    """What was left out of a commit, as it is usual, too."""
    usual = {"relations": {}, "segments": {}, "last_epoch": 0, "epoch_before": 0, "catalog": "", "checkpoint": 0}
    return {**usual, **value}


def _is_kept(commit: dict[str, Any], low_water: int, reigns: list[Any]) -> bool:
    if commit["number"] > low_water:
        return True
    turn = max((r for r in reigns if r[0] <= commit["number"]), default=None)
    return turn is not None and turn[1:] == [commit["writer"], commit["token"]]


def _named(data: bytes) -> set[str]:
    return {found.decode() for found in _FILE.findall(data)}
