"""The simulated world: processes and what runs in them, one at a time, in an order that a seed decides.

What runs is real code in a real thread, but only the thread that has the turn goes on. It may lose the turn at each
step: a call to the store, a lock that another one has, a pause. So all that happens follows from the seed.
"""

from __future__ import annotations

import _thread
import contextlib
import random
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

#: A real thread that has the turn and does not come to a step for so long hangs.
_STUCK_S = 60.0


class Killed(BaseException):
    """The process is dead: nothing that it does after this has an effect, clean-ups included."""


class Violation(AssertionError):
    """The product broke a promise."""


class Process:
    """A simulated process.

    skew_us: by how much its clock is ahead. memory: what modules keep for a process, by name.
    """

    def __init__(self, world: World, name: str, pid: int) -> None:
        self.world, self.name, self.pid = world, name, pid
        self.is_alive = True
        self.paused_until: int | None = None
        self.steps = 0
        self.skew_us = 0
        self.memory: dict[str, Any] = {}

    @property
    def actors(self) -> list[Actor]:
        return [a for a in self.world.actors if a.process is self]

    @property
    def is_over(self) -> bool:
        return all(a.is_over for a in self.actors)

    def kill(self) -> None:
        """It does nothing more, from here on."""
        if self.is_alive:
            self.is_alive = False
            self.paused_until = None
            self.world.note(f"killed {self.name}")
            self.world.died(self)

    def pause(self, steps: int) -> None:
        """It stands still while the others make so many steps, or until they are through."""
        self.paused_until = self.world.steps + steps
        self.world.note(f"paused {self.name}")

    def resume(self) -> None:
        if self.paused_until is not None:
            self.paused_until = None
            self.world.note(f"resumed {self.name}")


class Actor:
    """What runs in a process beside others: a thread that has its turns."""

    def __init__(self, world: World, process: Process, name: str, work: Callable[[], None]) -> None:
        self.world, self.process, self.name = world, process, f"{process.name}/{name}"
        self.is_over = False
        self.is_ready: Callable[[], bool] | None = None
        """What it waits for; None: nothing."""
        self.wakes_us: int | None = None
        """When it goes on although that did not come."""
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self._work = work
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def can_go_on(self) -> bool:
        if self.is_over:
            return False
        if not self.process.is_alive:
            return True  # to its end
        if self.process.paused_until is not None:
            return False
        if self.is_ready is None or self.is_ready():
            return True
        return self.wakes_us is not None and self.wakes_us <= self.world.now_us

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if self.process.is_alive:
                self._work()
        except Killed:
            pass
        except BaseException as cause:
            # Clean-ups of a process that is dead may meet anything.
            if self.process.is_alive:
                self.world.fail(cause, self.name)
        self.is_over = True
        self.world.pass_on()


class World:
    """switching: how likely another one has the turn after a step."""

    def __init__(self, seed: object, *, switching: float = 0.1, most_steps: int = 200_000) -> None:
        self.seed = seed
        self.switching = switching
        self.most_steps = most_steps
        self.now_us = 1_750_000_000_000_000
        self.steps = 0
        self.notes: list[str] = []
        self.digest = 0
        self.actors: list[Actor] = []
        self.at_end: list[Callable[[], None]] = []
        """What is given back when the world has ended."""
        self.current: Actor | None = None
        self.failure: BaseException | None = None
        self.failed_in = ""
        self.watchers: list[Callable[[Actor, str], bool]] = []
        """Asked before each step, until one says that it has seen enough."""
        self.died: Callable[[Process], None] = lambda process: None
        self._later: list[tuple[int, Callable[[], object]]] = []
        self._randoms: dict[str, random.Random] = {}
        self._schedule = self.random("schedule")
        self._processes = 0
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self.outside = Process(self, "outside", 1000)
        """What is done before the world begins, and after it."""

    def random(self, name: str) -> random.Random:
        """A source of random numbers of its own, so that one more number here changes nothing there."""
        if name not in self._randoms:
            self._randoms[name] = random.Random(f"{self.seed}/{name}")
        return self._randoms[name]

    @property
    def process(self) -> Process:
        """The process that has the turn."""
        return self.outside if self.current is None else self.current.process

    def start(self, name: str) -> Process:
        """A new process."""
        self._processes += 1
        return Process(self, name, 1000 + self._processes)

    def run_in(self, process: Process, name: str, work: Callable[[], None]) -> Actor:
        """Lets `work` run in a process, from a later turn on."""
        actor = Actor(self, process, name, work)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Lets the world go on until nothing is left to do. Raises what broke."""
        self.pass_on()
        before = -1
        while not self._ended.acquire(timeout=_STUCK_S):
            if self.steps != before:  # a busy machine takes its time
                before = self.steps
                continue
            stuck = self.current
            raise Violation(f"{stuck.name if stuck else 'nobody'} does not come to its next step")
        if self.failure is not None:
            raise self.failure

    def later(self, steps: int, do: Callable[[], object]) -> None:
        """Does it after so many steps, whoever still lives then. It must not be a step itself."""
        self._later.append((self.steps + steps, do))

    def do_all(self) -> None:
        """Does all that is to be done later now."""
        due, self._later = self._later, []
        for _, do in due:
            do()

    def note(self, text: str) -> None:
        """Adds a line to what happened."""
        self.digest = zlib.crc32(text.encode(), self.digest)
        self.notes.append(text)

    def fail(self, cause: BaseException, where: str) -> None:
        """A promise is broken: the world ends."""
        if self.failure is None:
            self.failure, self.failed_in = cause, where
            self.note(f"FAILED in {where}: {''.join(traceback.format_exception_only(cause)).strip()}")
            for actor in self.actors:
                actor.process.is_alive = False

    def step(self, what: str) -> None:
        """The actor that has the turn is about to do something that others may see. Raises Killed."""
        actor = self.current
        if actor is None:
            return
        process = actor.process
        if not process.is_alive:
            raise Killed
        self.steps += 1
        process.steps += 1
        self.now_us += 1000 + self._schedule.randrange(4000)
        self.note(f"{actor.name} {what}")
        if self.steps > self.most_steps:
            self.fail(Violation(f"nothing is done after {self.steps} steps"), actor.name)
        if self._later:
            due = [do for at, do in self._later if at <= self.steps]
            self._later = [l for l in self._later if l[0] > self.steps]
            for do in due:
                do()
        if self.watchers:
            self.watchers = [watch for watch in self.watchers if not watch(actor, what)]
        if not process.is_alive:
            raise Killed
        if process.paused_until is not None or self._schedule.random() < self.switching:
            self._give_turn(actor)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Inside there are no steps: what is done there is no part of the world."""
        before, self.current = self.current, None
        try:
            yield
        finally:
            self.current = before

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until `ready()`, or so many seconds; whether it is."""
        actor = self.current
        if actor is None:
            self.now_us += round((seconds or 0) * 1e6)
            return ready()
        if not actor.process.is_alive:
            raise Killed
        actor.is_ready = ready
        actor.wakes_us = None if seconds is None else self.now_us + round(seconds * 1e6)
        try:
            self._give_turn(actor)
        finally:
            actor.is_ready = actor.wakes_us = None
        return ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def _give_turn(self, actor: Actor) -> None:
        """Lets another one go on, or the same; returns when it is this one's turn again."""
        chosen = self._choose()
        if chosen is not actor:
            self.current = chosen
            if chosen is None:
                self._ended.release()
            else:
                chosen.turn.release()
            actor.turn.acquire()
        if not actor.process.is_alive:
            raise Killed

    def pass_on(self) -> None:
        """The one that had the turn is through, or nobody had it yet."""
        chosen = self._choose()
        self.current = chosen
        if chosen is None:
            self._ended.release()
        else:
            chosen.turn.release()

    def _choose(self) -> Actor | None:
        """Who goes on; None if all are through."""
        self.actors = [a for a in self.actors if not a.is_over]
        while True:
            for process in {id(a.process): a.process for a in self.actors}.values():
                if process.paused_until is not None and process.paused_until <= self.steps:
                    process.resume()
            ready = [a for a in self.actors if a.can_go_on()]
            if ready:
                return ready[0] if len(ready) == 1 else self._schedule.choice(ready)
            if not self.actors:
                return None
            times = [a.wakes_us for a in self.actors if a.wakes_us is not None and a.process.paused_until is None]
            paused = [a.process for a in self.actors if a.process.paused_until is not None]
            if times:
                self.now_us = max(self.now_us, min(times))
            elif paused:
                min(paused, key=lambda p: p.paused_until or 0).resume()
            else:
                waiting = ", ".join(a.name for a in self.actors)
                self.fail(Violation(f"these wait for each other: {waiting}"), "the world")
