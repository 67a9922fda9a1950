"""The coordinator decides what the next epoch reads.

It plans from the newest epoch commit (frontier and circuit) and from new rows of the inputs; it never runs or commits
an epoch. Planned epochs may be ahead of committed ones; after a failure, a new coordinator starts from the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from watersmeet.catalog import Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import (
    Fill,
    Live,
    Mode,
    Rebuild,
    Refresh,
    Rescale,
    SplitKeys,
    StateDistribution,
    StopViews,
)
from watersmeet.errors import error, error_from_json
from watersmeet.runtime.backfill import (
    Contents,
    Piece,
    begin,
    beside,
    fill_in,
    fill_of,
    fill_rate,
    lease_at,
    next_phase,
    next_piece,
    next_replay,
    next_round,
    present_contents,
)
from watersmeet.runtime.engine import Database
from watersmeet.runtime.epochstatus import replay_epochs, replayed_rows, stored_rows
from watersmeet.runtime.eventtimes import Idleness, clocked, clocks, event_times, late_outputs, own_filters
from watersmeet.runtime.inputs import Inputs
from watersmeet.runtime.limits import most_rows, most_used
from watersmeet.runtime.plans import (
    check_operators,
    check_rebuild,
    check_shared,
    check_state,
    check_whole,
    kept_circuit,
    load_circuit,
    save_circuit,
)
from watersmeet.runtime.reach import later_rounds, looked_up_first, new_operators, only_read_by, reach
from watersmeet.runtime.recomputing import plan_recompute
from watersmeet.runtime.splitting import Splitting
from watersmeet.runtime.taskcontract import Intent, divide
from watersmeet.runtime.workers import Budget, PieceBudget
from watersmeet.store.commits import Commit
from watersmeet.store.manifests import Backfill, Filling, Frontier, Purpose, Rebuilding
from watersmeet.store.readers import Reader
from watersmeet.values.slices import Slice

#: The number of epochs after which the sources' memory is saved.
SAVE_EPOCHS: Final = 256


class Coordinator:
    """Plans epochs. Not thread-safe.

    `plan` returns the next intent, `done` records its commit. `install` changes the circuit and may be called only when
    every planned intent is committed. `close` must be called.
    """

    def __init__(self, db: Database, *, budget: Budget | None = None) -> None:
        self._db = db
        self.budget = budget or Budget()
        self._pieces = PieceBudget(self.budget)
        """The budget of pieces of history between which live views run."""
        self._is_views_turn = False
        """Whether the live views run next, beside views that are being filled."""
        self._replayed = 0
        """The number of live epochs that the fill replayed since the last one was planned."""
        last = db.log.last_epoch()
        frontier = (last.frontier if last else None) or Frontier()
        self.circuit: Circuit | None = None
        self._stored: Circuit | None = None
        """The circuit of the newest epoch, to which the state belongs."""
        if last is not None and last.circuit is not None:
            self.circuit = self._stored = kept_circuit(db.layout, last.circuit)
        self.epoch = (last.epoch or 0) if last else 0
        """The last epoch planned."""
        progress = db.log.progress()
        self._time_us = progress.time_us
        """The time of the last epoch planned."""
        self.backfill = frontier.backfill
        """The history left to read after the newest planned epoch."""
        self._committed_backfill = frontier.backfill
        self.lost: dict[str, str] = {}
        """For each relation, the part of its history that no longer existed when views were last filled."""
        self._failed = progress.failed
        """The error that stopped each view, by id. Stopped views don't run."""
        self.committed_epoch = self.epoch
        """The last epoch committed."""
        self._last_commit = last.number if last else 0
        self._prune = False
        self._recomputing: tuple[int, int] | None = None
        """The last planned epoch that computes views again, and the first commit that it needs."""
        self._splitting = Splitting(db, progress.split)
        self._idleness = Idleness()
        self._overrides: dict[str, int] = {}
        self._reader = Reader(db.layout)
        self.inputs = Inputs(db, Frontier(frontier.transaction, frontier.sources))
        self._renew_lease()
        self._scan()

    def close(self) -> None:
        """Release the lease on commits; save the sources' memory if every planned epoch is committed."""
        if self.is_drained and self._can_save and self._last_commit > self.inputs.saved_at:
            self.inputs.save(self._last_commit)
        self._reader.close()

    @property
    def begins_fill(self) -> bool:
        """Whether the next epoch is the first one of a fill beside live views, which clones their state as of now."""
        return self.fills_beside and self.backfill is not None and not self.backfill.started

    @property
    def is_drained(self) -> bool:
        """True if every planned epoch is committed."""
        return self.committed_epoch == self.epoch

    def abandon(self) -> None:
        """Like `close`, but saves nothing, because planned epochs will not be committed."""
        self._reader.close()

    def runs(self, circuit: Circuit) -> bool:
        """Whether `circuit` without its stopped views is the running one."""
        return self.circuit is not None and self.circuit.fingerprint == circuit.without(self._failed).fingerprint

    def shows(self, views: Iterable[str]) -> bool:
        """Whether each of `views` is live or stopped."""
        return self.live_views >= set(views) - self._failed.keys()

    def check_filled(self, views: Iterable[str]) -> None:
        """Raise the error of a stopped view among `views`."""
        for view in views:
            if view in self._failed:
                raise error_from_json(self._failed[view])

    @property
    def has_chores(self) -> bool:
        """Whether an epoch is due even without input."""
        return self._prune or (self._splitting.is_due and self.backfill is None)

    @property
    def fills_beside(self) -> bool:
        """Whether views are being filled beside live ones, so that `plan` also reads new input."""
        return self.backfill is not None and not self.backfill.waits

    def is_views_turn(self, now_us: int) -> bool:
        """Whether live views run next, before the next piece of history of views that are filled beside them."""
        if not self.fills_beside:
            return False
        allowed = self._pieces.allows(self._rate, now_us)  # also determines the rows of the next piece
        return not self.begins_fill and ((self._is_views_turn and not self._begins_round) or not allowed)

    @property
    def yields(self) -> bool:
        """Whether others may plan live epochs now, beside views that are being filled. A fill that replays live epochs
        first replays several, because otherwise it would not catch up.
        """
        return self.fills_beside and (self._is_views_turn or not self._replayed)

    @property
    def _rate(self) -> int | None:
        """The maximum number of rows of history per second; 0: none for now; None: any number."""
        return None if self.backfill is None else fill_rate(self._db, self.backfill)

    @property
    def live_views(self) -> frozenset[str]:
        """The views whose content is complete as of the newest planned epoch."""
        if self._stored is None:
            return frozenset()
        purpose = None if self.backfill is None else self.backfill.purpose
        filling = purpose.views if isinstance(purpose, Filling) else ()
        return frozenset(s.relation_id for s in self._stored.sinks) - frozenset(filling)

    @property
    def wants_to_save(self) -> bool:
        """Whether the sources' memory should be saved, which requires that all planned epochs are committed."""
        return self._can_save and self._db.log.head() - self.inputs.saved_at > SAVE_EPOCHS

    @property
    def _can_save(self) -> bool:
        """Whether there are sources, and no fill needs their memory as it was at its beginning."""
        purpose = None if self.backfill is None else self.backfill.purpose
        return bool(self.inputs.sources) and not (isinstance(purpose, Filling) and purpose.beside)

    @property
    def must_drain(self) -> bool:
        """Whether no epoch may be planned before all planned ones are committed."""
        must = self.wants_to_save or self._has_stopped() or self._begins_round or self._replays_clocks
        return must and not self.is_drained

    @property
    def _replays_clocks(self) -> bool:
        """Whether the next replayed epoch depends on the rows that wait after the epoch before it."""
        replays = self.backfill is not None and self.backfill.replays
        return replays and self.circuit is not None and bool(self.circuit.idle_filters)

    @property
    def _begins_round(self) -> bool:
        """Whether a fill beside live views has read all that was committed when its round or phase began."""
        return self.backfill is not None and not self.backfill.waits and self.backfill.is_read

    def install(self, circuit: Circuit) -> None:
        """Make the next epochs run `circuit`; sinks that are not live yet are backfilled first.

        A backfill of views that are still in `circuit` continues, with its old circuit if that has fewer views or other
        operators for them: then call again after it.
        An interrupted rebuild continues if it was for `circuit`; otherwise it is abandoned. Also call again after the
        next epoch if there are split keys that can't be in `circuit`.

        Raises LateRowsError, or STATE_MISMATCH if a live view would need state other than the stored one; then nothing
        is changed.
        """
        assert self.is_drained
        circuit = circuit.without(self._failed)
        sinks = {s.relation_id for s in circuit.sinks}
        if self.backfill is not None:
            purpose = self.backfill.purpose
            if isinstance(purpose, Rebuilding) and not self.runs(circuit):
                # The rebuild was interrupted and is no longer needed, because the earlier state still exists.
                self.circuit = self._stored = load_circuit(self._db.layout, purpose.before)
                self._prune = True
            elif isinstance(purpose, Rebuilding):
                return
            elif isinstance(purpose, Filling) and sinks & set(purpose.views):
                self._change_filling(circuit, self.backfill)
                return
            self.backfill = None
            self.inputs.end_histories()
        if self._stored is not None and not self._splitting.allows(self._stored, circuit):
            return
        if self._stored is None or circuit.fingerprint != self._stored.fingerprint:
            save_circuit(self._db.layout, circuit)
        live = self.live_views & sinks
        if self._stored is not None:
            check_state(self._stored, circuit, live)
        views = tuple(s.relation_id for s in circuit.sinks if s.relation_id not in live)
        fill = reach(circuit, views, live, self._db.log.progress().late) if views else None
        if fill is not None and live:
            check_shared(circuit, live, fill, self._db.log.progress())
        before = self.circuit
        self.circuit = circuit
        self.inputs.forget(self._db.catalog().relations)
        if not live:
            # No view has content of an older moment, so the new views start from the newest one.
            self.inputs.skip_to(self._newest_transaction())
        if fill is not None and self._begin_beside(circuit, views, live):
            return
        self._scan()
        if fill is not None:
            parts = replay_epochs(self._db, fill, self.budget.rows, self.budget.bytes)
            self._begin(Filling(views, parts=parts), fill, live, self._contents())
        elif before is not None and before.fingerprint != circuit.fingerprint:
            self._prune = True
            self._renew_lease()

    def _change_filling(self, circuit: Circuit, backfill: Backfill) -> None:
        """Make the next epochs run `circuit` during a fill, if that is possible."""
        changed = None
        if self.circuit is not None:
            changed = fill_in(self.circuit, circuit, backfill, self._db.catalog().relations)
        if changed is None:
            return
        if self._stored is not None:
            check_state(self._stored, circuit, self.live_views & {s.relation_id for s in circuit.sinks})
        save_circuit(self._db.layout, circuit)
        self.circuit, self.backfill, self._prune = circuit, changed, True
        self.inputs.forget(self._db.catalog().relations)
        self._scan()

    def give_up_filling(self) -> None:
        """Make the next epochs run without the views that are being filled."""
        if self.circuit is not None and self.backfill is not None and isinstance(self.backfill.purpose, Filling):
            self.install(self.circuit.without(self.backfill.purpose.views))

    def gather(self) -> None:
        """Make the next epoch end the splitting of all keys; it is due if any key is split."""
        self._splitting.gather()

    def rebuild(self, circuit: Circuit) -> None:
        """Rebuild all state for `circuit`, possibly with another number of buckets, without changing content. No key
        may be split, and no view may be being filled.
        """
        assert self.is_drained
        assert not self._splitting.split
        assert self.backfill is None
        if self._stored is None:
            raise error("INTERNAL_ERROR", "there is no state to rebuild")
        circuit = circuit.without(self._failed)
        check_rebuild(circuit, self._db.log.progress(), self._db.catalog().relations)
        save_circuit(self._db.layout, circuit)
        self.circuit = circuit
        self._scan()
        views = tuple(s.relation_id for s in circuit.sinks)
        every = Fill(True, dict.fromkeys(circuit.by_id, "new"))
        self._begin(Rebuilding(views, self._stored.fingerprint), every, frozenset(), self._contents())

    def rescale(self, circuit: Circuit, distributions: Mapping[str, Mapping[str, StateDistribution]]) -> Intent:
        """The epoch that moves all state to the buckets of `circuit`, which has the operators of the running one.
        distributions: as in `Rescale`.

        No key may be split. If the state differs, plans nothing and raises STATE_MISMATCH.
        """
        assert self.is_drained
        assert not self._splitting.split
        assert self.backfill is None
        assert self._stored is not None
        circuit = circuit.without(self._failed)
        check_operators(self._stored, circuit, circuit.by_id)
        save_circuit(self._db.layout, circuit)
        self.circuit = circuit
        return self._intent(circuit, Rescale(distributions), self.inputs.frontier, (), everywhere=False)

    def refresh(self, circuit: Circuit, made: Mapping[str, str], catalog: str) -> Intent:
        """The epoch from which views run as hidden views do, in `circuit`.

        made, catalog: as in `Refresh`. If operators have no state, plans nothing and raises STATE_MISMATCH.
        """
        assert self.is_drained
        assert self.backfill is None
        assert self._stored is not None
        circuit = circuit.without(self._failed.keys() - made.keys())
        check_operators(self._stored, circuit, circuit.by_id)
        save_circuit(self._db.layout, circuit)
        self.circuit = circuit
        self._scan()
        self._prune = True
        return self._intent(circuit, Refresh(made, catalog), self.inputs.frontier, (), everywhere=False)

    def stop_views(self, stopped: Mapping[str, dict[str, Any]], *, reset_clock: bool) -> Intent:
        """The epoch that stops views; stopped: as in `StopViews`. reset_clock: whether to set the time of epochs to the
        machine's clock, even if that time was later.
        """
        assert self.is_drained
        assert self.backfill is None
        assert self.circuit is not None
        if reset_clock:
            self._time_us = self._db.clock.now_us()
            self._idleness = Idleness()
        return self._intent(self.circuit, StopViews(stopped), self.inputs.frontier, (), everywhere=False)

    def plan(self, now_us: int, *, fresh: bool = False, sources: bool = True) -> Intent | None:
        """The next intent, or None if nothing is due. fresh, sources: as in `Inputs.take`."""
        if self.circuit is None:
            return None
        if (change := self.plan_split()) is not None:
            return change
        if not self._shed():
            return None
        if self.backfill is not None and not self.is_views_turn(now_us):
            intent = self._plan_backfill(self.circuit, self.backfill)
            if intent is not None:
                self._is_views_turn = not 0 < self._replayed < self._pieces.replays
            return intent
        intent = self._plan_live(self.circuit, now_us, fresh=fresh, sources=sources)
        if intent is None and self.backfill is not None and not self.is_views_turn(now_us):
            return self._plan_backfill(self.circuit, self.backfill)
        return intent

    def plan_beside(self, now_us: int, *, fresh: bool) -> Intent | None:
        """As `plan`, but only what live views read, while views are being filled beside them."""
        assert self.circuit is not None
        assert not self.begins_fill
        return self._plan_live(self.circuit, now_us, fresh=fresh, sources=True)

    def _plan_live(self, circuit: Circuit, now_us: int, *, fresh: bool, sources: bool) -> Intent | None:
        self._is_views_turn, self._replayed = False, 0
        batch, before = None, self.inputs.frontier.transaction
        if circuit.sinks:
            self.budget.buckets = circuit.buckets
            batch = self.inputs.take(self.budget.rows, self.budget.bytes, now_us, fresh=fresh, sources=sources)
        slices = batch.slices if batch else ()
        time_us = self._db.clock.now_us()
        self._idleness.watch(circuit, time_us)
        if circuit.idle_filters:
            new, progress = new_operators(circuit, self.backfill), self._db.log.progress()
            self._overrides |= self._idleness.rise(circuit, new, slices, progress, time_us, drained=self.is_drained)
        tick = bool(self._overrides) or (not slices and self._tick_is_due(circuit, at_once=fresh))
        if batch is None and not self._prune and not tick:
            return None
        if batch is not None:
            self.budget.planned(limited=batch.more)
        prune, self._prune = self._prune, False
        frontier = replace(self.inputs.frontier, backfill=self.backfill)
        if batch is not None and self.backfill is None:
            pin, most = partial(self._reader.pin, 0), (self.budget.most_rows, self.budget.most_bytes)
            again = plan_recompute(self._db, circuit, batch, before, most, pin)
            self._recomputing = None if again is None else (self.epoch + 1, again.lease)
            self._renew_lease()
            if again is not None:
                return self._intent(circuit, again.mode, frontier, again.slices, everywhere=True)
        return self._intent(circuit, Live(), frontier, slices, everywhere=prune or tick)

    def plan_split(self) -> Intent | None:
        """The epoch that changes which keys are split, if one is due. It reads no input."""
        if self.circuit is None or self.backfill is not None or not self._splitting.is_due:
            return None
        mode = SplitKeys(self._splitting.take())
        return self._intent(self.circuit, mode, self.inputs.frontier, (), everywhere=False)

    def _shed(self) -> bool:
        """Remove stopped views from the circuit; False if that must wait for planned epochs."""
        if self.circuit is None or not self._has_stopped():
            return True
        if self.is_drained:
            self.install(self.circuit)
        return self.is_drained

    def _has_stopped(self) -> bool:
        """Whether the circuit still has stopped views that can be removed."""
        filling = set() if self.backfill is None else set(self.backfill.purpose.views) - self._failed.keys()
        return (
            not filling and self.circuit is not None and any(s.relation_id in self._failed for s in self.circuit.sinks)
        )

    def _tick_is_due(self, circuit: Circuit, *, at_once: bool) -> bool:
        """Whether an epoch without data is due because time has passed: after a clock tick, or with `at_once` after any
        time.
        """
        now_us = self._db.clock.now_us()
        if now_us < self._time_us + (1 if at_once else self._db.clock.tick_us):
            return False
        if not self.is_drained:  # waiting rows are only known after the planned epochs
            return at_once and bool(clocked(circuit))
        last = self._db.log.last_epoch()
        if last is None:
            return False
        new = new_operators(circuit, self.backfill)
        known, sources = self._db.catalog().relations, self.inputs.sources
        return self._idleness.is_tick_due(circuit, new, known, sources, last.progress, now_us)

    def override_watermark(self, relation_id: str, time_us: int) -> None:
        """Declare that no later row of the relation is earlier than `time_us`; the next epoch records this without a
        row.
        """
        self._overrides[relation_id] = max(time_us, self._overrides.get(relation_id, time_us))

    def done(self, commit: Commit, duration_s: float) -> None:
        """Record that the next planned epoch was committed."""
        assert commit.epoch is not None
        self.committed_epoch = commit.epoch
        self._last_commit = commit.number
        self._failed = commit.progress.failed
        backfill = None if commit.frontier is None else commit.frontier.backfill
        if backfill is not None and backfill != self._committed_backfill and not backfill.waits:
            if backfill.replays:
                self._pieces.replayed(duration_s)
            else:
                self._pieces.ran(min(duration_s, commit.metrics.tasks_us / 1e6))
        else:
            self.budget.ran(duration_s)
        self._committed_backfill = backfill
        if self.circuit is not None and self.circuit.fingerprint == commit.circuit:
            self.budget.joined(commit.metrics.rows, most_used(self._db, self.circuit, commit))
        if self.circuit is not None and self.backfill is None:
            self._splitting.observe(self.circuit, commit)
        if self.is_drained and self.wants_to_save:
            self.inputs.save(self._last_commit)
        self._renew_lease()

    def _begin_beside(self, circuit: Circuit, views: tuple[str, ...], live: frozenset[str]) -> bool:
        """Begin to fill `views` while the views `live` run, if that is possible and the history is large."""
        contents = self._contents()
        rows, few = partial(replayed_rows, self._db), self._pieces.few_rows
        found = beside(self._db, circuit, views, live, contents, rows, few_rows=few, time_us=self._time_us)
        if found is None:
            return False
        self._begin(found.purpose, found.history, live, contents, found.read)
        self._scan()
        self._renew_lease()
        return True

    def _contents(self) -> Contents:
        """The contents from which a backfill begins. The lease begins before a checkpoint is chosen, because retention
        could delete it in between.
        """
        self._reader.pin(0)
        return present_contents(self._db)

    def _begin(
        self,
        purpose: Purpose,
        fill: Fill,
        complete: frozenset[str],
        contents: Contents,
        beside: list[Relation] | None = None,
    ) -> None:
        """Begin a backfill of the circuit. The arguments are those of `backfill.begin`."""
        circuit, frontier = self.circuit, self.inputs.frontier
        assert circuit is not None
        self.lost, self._replayed = {}, 0
        self.backfill = begin(self._db, circuit, purpose, fill, frontier, contents, complete=complete, beside=beside)
        self._renew_lease()

    def _plan_backfill(self, circuit: Circuit, backfill: Backfill) -> Intent | None:
        if self._begins_round:
            if not self.is_drained:
                return None  # only then stored content reflects the tables
            few, limited = self._pieces.unlimited_rows, self._rate is not None
            following = next_phase(circuit, backfill, partial(stored_rows, self._db))
            backfill = following or next_round(self._db, circuit, backfill, self.inputs.frontier, few, limited=limited)
        if backfill.replays:
            return self._plan_replay(circuit, backfill) if self.is_drained or not self._replays_clocks else None
        budget = self.budget if backfill.waits else self._pieces
        timed = event_times(circuit, self._db.catalog())
        drops = frozenset(i for i, time in timed.items() if time.drops)
        sources = self.inputs.histories(self._db.catalog().relations, backfill)
        piece = next_piece(self._db, backfill, sources, budget.rows, budget.bytes, drops=drops)
        if isinstance(backfill.purpose, Rebuilding):
            check_whole(piece.lost)
        self.lost |= piece.lost
        purpose, is_last = backfill.purpose, piece.after is None
        mode: Fill | Rebuild = Rebuild(not backfill.started)
        if isinstance(purpose, Filling):
            is_last = not piece.more if purpose.replays else is_last
            mode = fill_of(self._db, circuit, backfill, purpose, piece, is_last=is_last)
        if is_last and clocked(circuit):
            self._prune = True  # time stood still during the backfill
        frontier = replace(self.inputs.frontier, backfill=piece.after)
        # Every bucket runs after the last piece, so that operators that wait for all history need no row.
        waits = isinstance(mode, Fill) and bool(mode.waiting)
        everywhere = mode.first or piece.until > 0 or (is_last and (waits or circuit.is_timed))
        intent = self._intent(circuit, mode, frontier, piece.slices, everywhere=everywhere)
        return self._following(backfill, piece, intent)

    def _plan_replay(self, circuit: Circuit, backfill: Backfill) -> Intent:
        """The next epoch of a fill that replays live ones."""
        fill = later_rounds(circuit, backfill)
        piece, moment, risen = next_replay(self._db, circuit, fill, backfill)
        self._replayed += 1
        self._idleness.has_risen(risen)
        if piece.after is None and clocked(circuit):
            self._prune = True
        mode = replace(fill, first=False, moment=moment)
        frontier = replace(self.inputs.frontier, backfill=piece.after)
        timed = moment is not None and circuit.is_timed
        intent = self._intent(circuit, mode, frontier, piece.slices, everywhere=timed)
        return self._following(backfill, piece, intent)

    def _following(self, backfill: Backfill, piece: Piece, intent: Intent) -> Intent:
        """`intent`, which reads a piece of a backfill. The next one reads its rest."""
        if backfill.waits:
            self.budget.planned(limited=piece.more)
        else:
            self._pieces.planned(piece.rows)
        self.backfill = piece.after
        if piece.after is None and (self.inputs.end_histories() or backfill.replays):
            self._scan()  # live epochs now read sources that only new views read
        return intent

    def _intent(
        self, circuit: Circuit, mode: Mode, frontier: Frontier, slices: tuple[Slice, ...], *, everywhere: bool
    ) -> Intent:
        """The next intent. everywhere: as in `Intent`."""
        known = self._db.catalog().relations
        tasks = divide(slices, circuit.buckets) if slices or everywhere else ()
        self.epoch = max(self.epoch + 1, 0 if self._db.feed is None else self._db.feed.epoch)
        if (isinstance(mode, Live) and tasks) or not self.live_views:
            # Only `stop_views` moves the time of epochs back, although a machine's clock may move back, or the next
            # writer may have another clock. The time does not change in epochs without tasks, nor in a backfill, whose
            # views share state with live views as of that time.
            self._time_us = max(self._time_us, self._db.clock.now_us())
        self._stored = circuit
        if isinstance(mode, Live):
            mode = self._live(mode, circuit, known, slices, has_work=bool(tasks))
        return Intent(
            self.epoch,
            circuit.fingerprint,
            frontier,
            mode,
            tasks,
            everywhere,
            self.inputs.specs(slices, known),
            self._time_us,
            event_times(circuit, self._db.catalog()),
            most_rows(self._db, circuit),
            late_outputs(circuit, self._db.catalog(), mode.runs),
        )

    def _live(
        self, mode: Live, circuit: Circuit, known: Mapping[str, Relation], slices: tuple[Slice, ...], *, has_work: bool
    ) -> Live:
        """The complete mode of a live epoch. has_work: whether a task will run; without one, watermarks don't move."""
        fill = None if self.backfill is None else later_rounds(circuit, self.backfill)
        new = frozenset() if fill is None else fill.having("new")
        without = tuple(sorted(new))
        mode = replace(mode, clocks=clocks(circuit, without), without=without)
        if not has_work:
            return mode
        self._idleness.note((piece.relation for piece in slices), self._time_us)
        overrides, self._overrides = self._overrides, {}
        if fill is None or self.backfill is None:
            return replace(mode, idle=self._idleness.idle(circuit, known, self._time_us), overrides=overrides)
        views, own = self.backfill.purpose.views, only_read_by(circuit, fill)
        # No source that only new views read is idle: its rows wait until the views are complete.
        self._idleness.note((i for i, r in known.items() if i in own and r.connector), self._time_us)
        idle, later = self._idleness.beside(circuit, views, own, known, self._time_us)
        filters = own_filters(circuit, new, known, self.inputs.sources)
        silent = self._idleness.note_silent(filters, slices, self._db.clock.now_us())
        return replace(mode, idle=idle, later=later, overrides=overrides, silent=silent)

    def _scan(self) -> None:
        if self.circuit is not None:
            known = self._db.catalog().relations
            # No live epoch reads a source that only views in the fill read.
            new = new_operators(self.circuit, self.backfill) if self.fills_beside else frozenset()
            scanned = {s.relation_id: known[s.relation_id] for s in self.circuit.scans if s.relation_id in known}
            live = {s.relation_id for s in self.circuit.scans if s.id not in new}
            self.inputs.set_scanned(
                [r for i, r in scanned.items() if i in live or not r.connector],
                looked_up_first(self.circuit, self.circuit.by_id, {}, live=True),
            )

    def _newest_transaction(self) -> int:
        log = self._db.log
        return max(self.inputs.frontier.transaction, log.newest_transaction(log.head()))

    def _renew_lease(self) -> None:
        """Keep retention from deleting commits that are still to be read."""
        idle = self.circuit is None or not (self.circuit.sinks or self.inputs.sources)
        if idle and self.backfill is None:
            self._reader.release()
            return
        log = self._db.log
        last, head = log.last_epoch(), log.head()
        needed = last.frontier.transaction if last and last.frontier else self.inputs.frontier.transaction
        if log.newest_transaction(head) <= needed:
            needed = head  # No transaction waits. Otherwise a database that only reads files would keep all commits.
        if self.inputs.sources or self.fills_beside:
            needed = min(needed, self.inputs.saved_at)
        if self.backfill is not None:
            needed = min(needed, lease_at(self._db, self.backfill))
        if self._recomputing is not None and self._recomputing[0] > self.committed_epoch:
            needed = min(needed, self._recomputing[1])
        self._reader.pin(needed)


#: The maximum time to wait for a file whose end may not be written yet.
MAX_SETTLE_US = 2_000_000


class Flush:
    """One flush. Call `plan` until `is_planned`; then all input that was visible at the start of the flush is
    planned.
    """

    def __init__(self) -> None:
        self._deadline_us = time.time_ns() // 1000 + MAX_SETTLE_US
        self._looked = False
        self.is_planned = False
        self.again_us: int | None = None
        """The time to plan again, if nothing was due but a file is about to be complete."""

    def plan(self, coordinator: Coordinator) -> Intent | None:
        """The next intent; None if nothing is due now."""
        if coordinator.must_drain:
            return None
        if (change := coordinator.plan_split()) is not None:
            return change
        now_us = time.time_ns() // 1000
        if coordinator.begins_fill:
            return coordinator.plan(now_us)
        if coordinator.fills_beside:
            intent = coordinator.plan_beside(now_us, fresh=not self._looked)
        elif coordinator.backfill is not None:
            return coordinator.plan(now_us)  # A backfill runs first, and reads no new input.
        else:
            intent = coordinator.plan(now_us, fresh=not self._looked)
        self._looked = True
        if coordinator.inputs.more and intent is not None:
            return intent
        next_us = coordinator.inputs.next_us
        if next_us is not None and now_us < next_us <= self._deadline_us:
            self.again_us = next_us
            self._looked = False
            return intent
        self.is_planned = True
        return intent
