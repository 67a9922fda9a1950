"""The contract of all targets: each batch is delivered once, at whichever step the writer dies or is overtaken."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
from tests.lakes import rest_catalog
from tests.thorough import mostly_slow
from tests.unit.sinks import (
    databasetargets,
    test_delta,
    test_files,
    test_iceberg,
    test_iceberg_rest,
    test_objects,
    test_redis,
)
from tests.unit.sinks.batches import Killed, additions, batch, history

from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import SinkOffset
from watersmeet.errors import Error
from watersmeet.system import process


@dataclass(frozen=True)
class System:
    """A system that a test writes to. target: makes its target. content: its rows, sorted. committed: those that its
    log names, where a writer that is killed leaves others as well. watch: called at each step
    of a target. leave: abandons a target as a process that ends does. check: asserts what else holds at the end.
    """

    target: Callable[..., Any]
    content: Callable[[], list[tuple[Any, ...]]]
    committed: Callable[[], list[tuple[Any, ...]]] | None = None
    watch: Callable[[], None] = lambda: None
    leave: Callable[[Any], None] = lambda _: None
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Case:
    """How a system is tested. steps: names of a target's steps, of which the first two are those of `open`. points,
    seeds: those of the tests that kill it, at most `deaths` times. changes: it has rows by key, and not all changes.
    """

    steps: Sequence[str]
    points: Sequence[Any]
    seeds: Sequence[Any]
    deaths: int = 8
    changes: bool = True
    marks: tuple[pytest.MarkDecorator, ...] = ()


FEW = mostly_slow(range(2), 1, 1, fresh=False)
SOME = mostly_slow(range(3), 1, 2, fresh=False)
POINTS = databasetargets.POINTS
CASES = {
    "delta": Case(test_delta.POINTS, test_delta.POINTS, SOME),
    "iceberg": Case(test_iceberg.POINTS, mostly_slow(test_iceberg.POINTS, 3), FEW, 6),
    "iceberg-rest": Case(test_iceberg.POINTS, mostly_slow(test_iceberg.POINTS, 2), [3], 4),
    "postgres": Case(POINTS, mostly_slow(POINTS, 3), FEW, marks=(pytest.mark.postgres,)),
    "mysql": Case(POINTS, mostly_slow(POINTS, 3), FEW, marks=(pytest.mark.mysql,)),
    "redis": Case(test_redis.POINTS, test_redis.POINTS, SOME, marks=(pytest.mark.brokers,)),
    "files": Case(test_files.POINTS, test_files.POINTS, range(3), 6, changes=False),
    "objects": Case(test_objects.POINTS, mostly_slow(test_objects.POINTS, 3), SOME, 6, changes=False),
}
KEYED = [name for name, case in CASES.items() if case.changes]
ADDED = [name for name, case in CASES.items() if not case.changes]


def systems(names: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("system", [pytest.param(n, marks=CASES[n].marks) for n in names], indirect=True)


@pytest.fixture
def system(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[System]:
    name = request.param
    if name in ("delta", "iceberg"):
        module = {"delta": test_delta, "iceberg": test_iceberg}[name]
        yield System(partial(module.target, tmp_path), partial(module.content, tmp_path))
    elif name == "iceberg-rest":
        with rest_catalog(tmp_path) as server:
            made = partial(test_iceberg_rest.target, server, tmp_path)
            yield System(made, partial(test_iceberg.content, tmp_path))
    elif name == "files":
        reader = test_files.Reader(tmp_path)
        made = partial(test_files.target, tmp_path, partition_by="name")
        yield System(made, partial(test_files.content, tmp_path), watch=reader.look)
    elif name == "objects":
        bucket = request.getfixturevalue("bucket")
        made = partial(test_objects.target, bucket, partition_by="name")

        def check():
            assert test_objects.delivered(bucket) == test_objects.seen(bucket)

        def committed():
            return test_objects.content(bucket, test_objects.delivered(bucket))

        yield System(made, partial(test_objects.content, bucket), committed, check=check)
    elif name == "redis":
        database = request.getfixturevalue("redis")
        yield System(partial(test_redis.target, database), partial(test_redis.content, database))
    else:
        database = request.getfixturevalue(name)
        database.execute(databasetargets.KEYED)
        target = partial(databasetargets.target, database)
        yield System(target, partial(databasetargets.content, database), leave=_leave_open)
    process.set_hook(None)


def _leave_open(sink: Any) -> None:
    sink._connection = None  # the server, or the next writer, closes it


@systems(KEYED)
def test_rows_are_changed_by_their_keys(system):
    sink = system.target()
    assert sink.open(1) is None
    sink.deliver([batch(3, (1, "a"), (2, "b"), (3, None))])
    sink.deliver([batch(4, (2, "b"), (1, "a"), (1, "c"), (4, 'd,"\\.\n'), diff=[-1, -1, 1, 1])])
    assert system.content() == [(1, "c"), (3, None), (4, 'd,"\\.\n')]
    sink.deliver([batch(5, (5, "e"), (1, "c"), diff=[1, -1]), batch(6, (5, "e"), (1, "f"), diff=[-1, 1])])
    assert system.content() == [(1, "f"), (3, None), (4, 'd,"\\.\n')]
    sink.close()
    assert system.target().open(1) == SinkOffset(1, 6)


@systems(["delta", "iceberg", "iceberg-rest", *ADDED])
def test_an_append_only_sink_only_adds(system):
    sink = system.target(rows="plain")
    sink.open(1)
    sink.deliver([batch(3, (1, "a"), (2, None), diff=[2, 1])])
    sink.deliver([batch(4, (1, "a"), (3, "\\."), (4, ""), diff=[-1, 1, 1])])
    assert system.content() == [(1, "a"), (1, "a"), (2, None), (3, "\\."), (4, "")]


def _kills() -> Iterator[Any]:
    for name, case in CASES.items():
        for cases in product(case.points, case.seeds):
            values, marks = [], list(case.marks)
            for each in cases:
                values.append(getattr(each, "values", (each,))[0])
                marks += getattr(each, "marks", ())
            yield pytest.param(name, *values, marks=marks, id="-".join(map(str, (name, *values))))


@pytest.mark.parametrize(("system", "point", "seed"), _kills(), indirect=["system"])
def test_killed_at_each_step_and_resumed(system, point, seed, request):
    case = CASES[request.node.callspec.params["system"]]
    made = partial(system.target, rows="upsert" if case.changes else "plain")
    wanted, r = history(seed) if case.changes else additions(seed), random.Random(seed)
    deaths = 0
    for _ in range(40):
        countdown = 1 if point in case.steps[:2] else r.randint(1, 3)

        def hook(name):
            nonlocal countdown
            system.watch()
            countdown -= name == point
            if countdown <= 0:
                raise Killed

        process.set_hook(hook if deaths < case.deaths else lambda _: system.watch())
        sink = made()
        try:
            offset = sink.open(1)
            rest = [p for p, _ in wanted if offset is None or p.offset > offset]
            while rest:
                size = r.randint(1, 2)
                sink.deliver(rest[:size])
                rest = rest[size:]
            break
        except Killed:
            deaths += 1
            system.leave(sink)
            process.set_hook(None)
            offset = made().open(1)
            system.watch()
            if offset is not None:
                assert (system.committed or system.content)() == next(rows for p, rows in wanted if p.offset == offset)
    process.set_hook(None)
    assert deaths
    assert made().open(1) == wanted[-1][0].offset
    assert system.content() == wanted[-1][1]
    system.check()


@systems(KEYED)
@pytest.mark.parametrize("rows", ["plain", "upsert"])
def test_a_writer_that_was_overtaken_writes_nothing(system, rows):
    before, after = system.target(rows=rows), system.target(rows=rows)
    before.open(1)
    before.deliver([batch(3, (1, "a"))])
    assert after.open(1) == SinkOffset(1, 3)
    with pytest.raises((Error, Unavailable)) as fenced:  # a server may have ended its connection
        before.deliver([batch(4, (2, "b"))])
    assert isinstance(fenced.value, Unavailable) or fenced.value.condition == "WRITER_FENCED"
    after.deliver([batch(4, (2, "c"))])
    assert system.content() == [(1, "a"), (2, "c")]


def _overtakings() -> Iterator[Any]:
    for name, generation in product(ADDED, (1, 2)):
        for point in CASES[name].points:
            plain, marks = getattr(point, "values", (point,))[0], getattr(point, "marks", ())
            yield pytest.param(name, plain, generation, marks=marks, id=f"{name}-{plain}-{generation}")


@pytest.mark.parametrize(("system", "point", "generation"), _overtakings(), indirect=["system"])
def test_a_writer_that_was_overtaken_at_a_step_never_writes_again(system, point, generation):
    """The second one comes while the first one is paused at a step, and delivers; then the first one continues."""
    first, second = system.target(), system.target()
    rows = [(1, "a"), (2, "b")]

    def hook(name):
        if name != point:
            return
        process.set_hook(None)
        offset = second.open(generation)
        if offset is None or offset.generation < generation:
            second.deliver([batch(3, *rows, generation=generation)])
        second.deliver([batch(4, (3, "c"), generation=generation)])

    process.set_hook(hook)
    fenced = False
    try:
        first.open(1)
        first.deliver([batch(3, *rows)])
        first.deliver([batch(4, (3, "c"))])
        first.deliver([batch(5, (4, "d"))])
    except Error as err:
        assert err.condition == "WRITER_FENCED"
        fenced = True
    if point == "objects.looked" and generation == 1:  # it is the first one that comes last
        assert not fenced
        with pytest.raises(Error, match="another process delivers"):
            second.deliver([batch(5, (4, "d"))])
        assert system.content() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
        return
    assert fenced
    assert system.content() == [(1, "a"), (2, "b"), (3, "c")]
    second.deliver([batch(5, (4, "d"), generation=generation)])
    assert system.content()[-1] == (4, "d")


@systems(KEYED)
def test_an_older_generation_is_fenced(system):
    newer = system.target(generation=2)
    newer.open(2)
    newer.deliver([batch(3, (1, "a"), generation=2)])
    with pytest.raises(Error) as fenced:
        system.target().open(1)
    assert fenced.value.condition == "WRITER_FENCED"
    assert system.target(generation=3).open(3) == SinkOffset(2, 3)


@systems(ADDED)
def test_a_new_generation_replaces_what_the_one_before_has_delivered(system):
    old = system.target()
    old.open(1)
    old.deliver([batch(3, (1, "a"), (2, "b"))])
    new = system.target()
    assert new.open(2) == SinkOffset(1, 3)
    assert system.content() == [(1, "a"), (2, "b")]
    new.deliver([batch(7, (5, "e"), generation=2)])
    assert system.content() == [(5, "e")]
    with pytest.raises(Error) as caught:
        system.target().open(1)
    assert caught.value.condition == "WRITER_FENCED"
    assert system.target().open(2) == SinkOffset(2, 7)


@systems(ADDED)
def test_a_directory_belongs_to_one_sink(system):
    system.target().open(1)
    for other in (system.target(target="s2"), system.target(database="other")):
        with pytest.raises(Error, match="belongs to another sink"):
            other.open(1)
