"""Two servers of one database in the simulated world: one writes, the other one stands by and takes over."""

from __future__ import annotations

import itertools

from tests.simulation.case import FOR_EVER, Supervisor
from tests.simulation.workload import Case, Writer
from watersmeet.cli.serving import FENCED, Fence, Watch
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection

#: As the option `--silent-seconds` of `serve`.
SILENT_S = 1.5

#: How often a standby looks, in seconds.
_LOOK_S = 0.1

#: How likely a question is lost on its way to the other server.
_LOST = 0.05


class Standby(Writer):
    """A server that stands by whenever it does not write. Its work as a writer is that of a `Writer`.

    other: the other server. port: that of no other server. writes: whether it has the database open for writing. ends:
    asks it to end.
    """

    _ports = itertools.count(1)

    def __init__(self, case: Case, name: str, sessions: int, operations: int, cleanings: int) -> None:
        super().__init__(case, name, sessions, operations, cleanings)
        self.other: Standby | None = None
        self.port = next(self._ports)
        self.writes = False
        self.ends = False
        self._fence: Fence | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether it writes and does not stand still."""
        return self.writes and self.process.is_alive and self.process.paused_until is None

    def is_writer(self, timeout_s: float) -> bool | None:
        """What `OtherServer.is_writer` is told by this server."""
        world = self.case.world
        world.step(f"asks {self.process.name} for its role")
        if not self.process.is_alive:
            return None
        if self.process.paused_until is not None or world.random("network").random() < _LOST:
            world.sleep(timeout_s)
            return None
        return self.writes

    def _main(self) -> None:
        while not self.ends:
            self.failed = False
            super()._main()
            self.writes = False
            self.lives += 1
            if not self.failed:
                return

    def _open(self) -> Connection | None:
        with self.case.open(read_only=True) as reader:
            watch = Watch(reader.opened.layout, self.other, SILENT_S)
            while not self.ends:
                if watch.is_free():
                    try:
                        connection = self.case.open(take_over=watch.breaks)
                    except Error as failure:
                        self.case.fate(failure)
                    else:
                        connection.opened.serves(self.port)
                        self.writes = True
                        self.case.world.note(f"{self.process.name} writes{', by force' if watch.breaks else ''}")
                        self._fence = Fence(connection)
                        self.case.world.run_in(self.process, "fence", self._watch_fence)
                        return connection
                self.case.world.sleep(_LOOK_S)
        return None

    def _watch_fence(self) -> None:
        fence = self._fence
        assert fence is not None
        fence._check()
        self.failed |= fence.error is not None and fence.error.condition == FENCED

    def _close(self, connection: Connection) -> None:
        if self._fence is not None:
            self._fence._ended.set()
        super()._close(connection)


def take_turns(supervisor: Supervisor) -> None:
    """Servers are killed, stand still and end, each time while they write; the other one must take over."""
    world, knobs = supervisor.world, supervisor.knobs

    def server(other: Standby | None) -> Standby:
        made = Standby(supervisor.case, f"server{supervisor.lives}", knobs.sessions, knobs.operations, knobs.cleanings)
        supervisor.lives += 1
        made.other = other
        if other is not None:
            other.other = made
        return made

    def start_anew() -> None:
        for number, one in enumerate(pair):
            if one.process.is_over or not one.process.is_alive:
                pair[number] = server(pair[1 - number])
                pair[number].start()

    pair = [server(None)]
    pair.append(server(pair[0]))
    for one in pair:
        one.start()
    for _ in range(knobs.lives + 1):
        start_anew()
        while not any(s.writes for s in pair):  # both may be through with their work at once
            world.wait(lambda: any(s.writes or s.process.is_over for s in pair))
            start_anew()
        writer, other = sorted(pair, key=lambda s: not s.writes)
        fate = supervisor.random.choice(("ends", "killed", "paused", "paused", "hangs", "overlaps"))
        if fate != "ends":
            reached = supervisor.reaching(writer.process)
            world.wait(lambda s=writer, reached=reached: s.process.is_over or not s.writes or reached())
        if fate == "killed":
            writer.process.kill()
            writer.writes = False
        elif fate == "paused" or (fate == "hangs" and not writer.writes):
            writer.process.pause(supervisor.random.choice((300, 3_000)))
        elif fate == "hangs":  # a standby that begins meanwhile has never had an answer from it
            writer.process.pause(FOR_EVER)
            other.process.kill()
            other.writes = False
            start_anew()
            other = next(s for s in pair if s is not writer)
            world.wait(lambda s=writer, o=other: o.writes or o.process.is_over or s.is_at_work)
            writer.process.kill()
            writer.writes = False
            continue
        else:
            writer.process.resume()
        world.wait(
            lambda s=writer, o=other, fate=fate: o.writes or (fate != "killed" and s.is_at_work) or o.process.is_over
        )
    for one in pair:
        one.ends = True
    supervisor.settle()
