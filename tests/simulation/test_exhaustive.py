"""A small workload, stopped at every single step: by a crash, a loss of power, or for as long as another writer works.

A crash leaves what is there at that moment. So the workload runs once, what is there is kept after each step that
changes something, and all of these are opened: as if the process had died before the next step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from tests.simulation.case import FOR_EVER, Knobs, Supervisor, run
from tests.simulation.ledger import Ledger
from tests.simulation.place import Files, Kind
from tests.simulation.workload import Writer
from tests.simulation.world import Actor, Process

PLAN = (
    "transaction",
    "flush",
    "transaction",
    "define",
    "clean",
    "transaction",
    "flush",
    "transaction",
    "clean",
    "flush",
)


@dataclass(frozen=True)
class Moment:
    """What is there, and what sessions were told, at one moment."""

    files: Files
    ledger: Ledger


def knobs(kind: Kind, **values: object) -> Knobs:
    return Knobs(store=kind, switching=0.0, **values)


def writes(supervisor: Supervisor, plan: tuple[str, ...] = PLAN) -> Writer:
    """A writer that does what the plan says."""
    writer = Writer(supervisor.case, f"writer{supervisor.lives}", 1, 0, 0, plan=plan)
    supervisor.lives += 1
    writer.start()
    return writer


def moments(kind: Kind) -> list[Moment]:
    """All moments of the workload at which something changes."""
    found: list[Moment] = []

    def work(supervisor: Supervisor) -> None:
        def changed(what: str, name: str) -> None:
            files = supervisor.place.files()
            if not found or found[-1].files != files:
                found.append(Moment(files, copy.deepcopy(supervisor.case.ledger)))

        supervisor.place.changed = changed
        process = writes(supervisor).process
        supervisor.world.wait(lambda: process.is_over)
        changed("end", "")

    run("small", knobs(kind), work)
    return found


def opens(moment: Moment, kind: Kind, seed: object) -> None:
    """What is left at a moment can be opened: what was acknowledged is there, and all goes on."""
    run(seed, knobs(kind), Supervisor.settle, files=moment.files, ledger=copy.deepcopy(moment.ledger))


def every(quick: int, slow: int) -> list[object]:
    """For parametrize: so far from each other are the steps that are tried, in the three tiers."""
    return [quick, pytest.param(slow, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("stride", every(4, 3))
def test_a_crash_at_each_request(stride: int) -> None:
    found = moments("objects")
    assert len(found) > 30
    for number in range(stride % 4, len(found), stride):
        opens(found[number], "objects", f"crash {number}")


@pytest.mark.slow
@pytest.mark.parametrize("stride", every(80, 17))
def test_a_crash_at_each_call_of_the_disk(stride: int) -> None:
    found = moments("disk")
    assert len(found) > 60
    for number in range(stride % 11, len(found), stride):
        opens(found[number], "disk", f"crash {number}")


@pytest.mark.slow
@pytest.mark.parametrize("stride", every(80, 17))
def test_a_loss_of_power_at_each_call_of_the_disk(stride: int) -> None:
    """What was written and not flushed is there in part; `moments` knows only of what was flushed before."""
    number = stride % 13
    while loses_power(number):
        number += stride
    assert number > 60


def loses_power(at: int) -> bool:
    """The power is lost before step `at` of the writer; False if it has fewer steps."""
    reached = []

    def script(supervisor: Supervisor) -> None:
        process = writes(supervisor).process

        def watch(actor: Actor, what: str) -> bool:
            if process.steps >= at:
                reached.append(what)
                process.pause(FOR_EVER)
            return bool(reached)

        supervisor.world.watchers.append(watch)
        supervisor.world.wait(lambda: process.is_over or bool(reached))
        if reached:
            supervisor.place.lose_power()
        supervisor.settle()

    run(f"power {at}", knobs("disk"), script)
    return bool(reached)


@pytest.mark.parametrize(
    "tries", [8, pytest.param(40, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.thorough)]
)
def test_a_loss_of_power_after_a_killed_writer_was_overtaken(tries: int) -> None:
    """The name of the last commit of the first one was not flushed; the second one goes on behind it."""
    for number in range(tries):
        assert loses_power_behind(number)


def loses_power_behind(number: int) -> bool:
    """A writer is killed when its commit is there, and the power is lost when the fence of the next one is."""
    stopped: list[bool] = []

    def script(supervisor: Supervisor) -> None:
        first = writes(supervisor, ("transaction", "flush", "transaction")).process
        stopped.append(stops_at_commit(supervisor, first, after=60))
        first.kill()
        stopped.append(stops_at_commit(supervisor, writes(supervisor).process))
        if stopped[1]:
            supervisor.place.lose_power()
        supervisor.settle()

    run(f"power behind {number}", knobs("disk", locks=False), script)
    return all(stopped)


def stops_at_commit(supervisor: Supervisor, process: Process, *, after: int = 0) -> bool:
    """Waits until a writer has linked a commit, and not flushed its name yet, behind its first `after` steps. It stands
    still then; False if it ends before.
    """
    linked: list[str] = []

    def watch(actor: Actor, what: str) -> bool:
        if actor.process is process and what.startswith("unlink commits/") and process.steps >= after:
            linked.append(what)
            process.pause(FOR_EVER)
        return bool(linked)

    supervisor.world.watchers.append(watch)
    supervisor.world.wait(lambda: process.is_over or bool(linked))
    return bool(linked)


def pauses(kind: Kind, at: int, plan: tuple[str, ...] = PLAN, before: str = "") -> bool:
    """The writer stands still before its step `at`, while another one works and cleans up, and goes on then.

    plan: of both. before: how the steps begin that count; all if it is empty. False if it has fewer such steps.
    """
    reached: list[str] = []
    left = at

    def script(supervisor: Supervisor) -> None:
        world = supervisor.world
        first = writes(supervisor, plan)

        def watch(actor: Actor, what: str) -> bool:
            nonlocal left
            if actor.process is first.process and what.startswith(before):
                left -= 1
                if not left:
                    reached.append(what)
                    first.process.pause(FOR_EVER)
            return bool(reached)

        world.watchers.append(watch)
        world.wait(lambda: first.process.is_over or bool(reached))
        if reached:
            second = writes(supervisor, plan)
            world.wait(lambda: second.process.is_over)
            assert not second.failed, "the writer that opened last was refused"
            was_open = 0 < first.done < len(plan) - 1
            first.process.resume()
            world.wait(lambda: first.process.is_over)
            assert first.failed or not was_open, "the writer that was overtaken was not told"
        supervisor.settle()

    run(f"pause {at}", knobs(kind, locks=False), script)
    return bool(reached)


@pytest.mark.parametrize("stride", every(62, 13))
def test_a_pause_at_each_request_while_another_writer_works(stride: int) -> None:
    at = 1 + stride % 11
    while pauses("objects", at):
        at += stride
    assert at > 100


#: Views that both writers make, under the same ids.
DEFINING = ("define", "define", "flush")


@pytest.mark.slow
@pytest.mark.parametrize("stride", every(39, 5))
def test_a_pause_at_each_request_while_another_writer_makes_views(stride: int) -> None:
    at = 1
    while pauses("objects", at, DEFINING):
        at += stride
    assert at > 70


@pytest.mark.slow
@pytest.mark.parametrize("stride", every(242, 37))
def test_a_pause_at_each_call_of_the_disk_while_another_writer_works(stride: int) -> None:
    at = 1 + stride % 23
    while pauses("disk", at):
        at += stride
    assert at > 300
