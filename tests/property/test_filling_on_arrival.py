"""Views whose results depend on the moment at which rows arrive are filled beside live ones. Their content always
equals that of a view that was filled at once when the fill began, and has then processed each later epoch.
"""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import watersmeet
from tests.property.test_filling_over_time import (
    BEGIN_US,
    SECOND_US,
    Run,
    in_turns,
    step_beside,
    step_ended,
    until_begun,
)
from tests.thorough import mostly_slow
from watersmeet.database.filling import BackgroundFills
from watersmeet.runtime import backfill, workers
from watersmeet.runtime.inprocess import InProcessEngine

WINDOW = "s.at BETWEEN e.at - INTERVAL '5 seconds' AND e.at + INTERVAL '5 seconds'"
QUERIES = {
    "look-up": "SELECT s.id, d.name FROM s JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON s.k = d.k",
    "left look-up": "SELECT e.id, d.name FROM e LEFT JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON e.k = d.k",
    "counted look-ups": "SELECT d.name, count(*) AS n FROM e JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d "
    "ON e.k = d.k GROUP BY d.name",
    "look-ups of deleted rows": "SELECT o.k, o.name, b.n FROM dim AS o "
    "LEFT JOIN by_key FOR SYSTEM_TIME AS OF PROCTIME() AS b ON o.k = b.k",
    "look-ups of a view": "SELECT b.k, b.n, d.name FROM by_key AS b JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d "
    "ON b.k = d.k",
    "on arrival": "SELECT s.id, e.id AS other FROM s JOIN e ON s.k = e.k AND s.id < e.id + 3000 EMIT ON ARRIVAL",
    "left on arrival": "SELECT s.id, e.id AS other FROM s LEFT JOIN e ON s.k = e.k AND s.id % 5 = e.id % 5 "
    "EMIT ON ARRIVAL",
    "nearest on arrival": "SELECT e.id, s.id AS other FROM e ASOF LEFT JOIN s ON e.k = s.k AND e.id >= s.id "
    "EMIT ON ARRIVAL",
    "anti on arrival": "SELECT s.id FROM s WHERE s.k NOT IN (SELECT k FROM dim WHERE name LIKE 'm%1') EMIT ON ARRIVAL",
    "final rows": "SELECT id, at FROM e EMIT ON WINDOW CLOSE",
    "final pairs": f"SELECT s.id, e.id AS other, s.at FROM s JOIN e ON s.k = e.k AND {WINDOW} EMIT ON WINDOW CLOSE",
    "change log": "WITH c AS CHANGELOG FROM by_key SELECT k, n, changelog_op AS op FROM c",
    "change log of a table": "WITH c AS CHANGELOG FROM dim SELECT k, name, changelog_op AS op FROM c",
    "change log of groups": "WITH c AS CHANGELOG FROM counted SELECT k, n, changelog_op AS op FROM c",
    "change log of top rows": "WITH c AS CHANGELOG FROM newest SELECT k, id, changelog_op AS op FROM c",
    "change log of pairs": "WITH c AS CHANGELOG FROM paired SELECT id, name, changelog_op AS op FROM c",
    "versions": "SELECT e.id, v.x FROM e LEFT JOIN versions FOR SYSTEM_TIME AS OF e.at AS v ON e.k = v.k",
    "only new": "SELECT n.id, d.name FROM new AS n JOIN dim FOR SYSTEM_TIME AS OF PROCTIME() AS d ON n.k = d.k",
    "only new final": "SELECT n.id, n.at FROM new AS n EMIT ON WINDOW CLOSE",
    "pairs with a quiet table": "SELECT q.id, e.id AS other, q.at FROM quiet AS q JOIN e ON q.k = e.k "
    f"AND {WINDOW.replace('s.', 'q.')} EMIT ON WINDOW CLOSE",
    "look-ups of an upserted table": "SELECT e.id, u.x FROM e JOIN upserted FOR SYSTEM_TIME AS OF PROCTIME() AS u "
    "ON e.k = u.k",
    "upserted rows": "SELECT e.id, u.x FROM e LEFT JOIN upserted AS u ON e.k = u.k",
    "change log of an upserted table": "WITH c AS CHANGELOG FROM upserted SELECT k, x, changelog_op AS op FROM c",
    "arrived": "SELECT p.id, p.arrived, d.name FROM p JOIN dim AS d ON p.k = d.k",
}
#: Those over few rows, which otherwise would be read at once.
SMALL = (
    "look-ups of deleted rows",
    "look-ups of a view",
    "change log",
    "change log of a table",
    "records of pairs",
    "change log of an upserted table",
)
TABLES = """
CREATE TABLE versions (k int PRIMARY KEY, x int, at timestamp, WATERMARK FOR at AS at - INTERVAL '4 seconds');
CREATE TABLE new (id int, k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '4 seconds') APPEND ONLY;
CREATE TABLE quiet (id int, k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '4 seconds') APPEND ONLY
    WITH (watermark_idle_timeout = '6 seconds');
CREATE VIEW counted AS SELECT k, count(*) AS n FROM s GROUP BY k;
CREATE VIEW newest AS SELECT k, id FROM (SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS place
    FROM s) AS numbered WHERE place <= 2;
CREATE VIEW paired AS SELECT s.id, d.name FROM s JOIN dim AS d ON s.k = d.k
"""


class Arrivals(Run):
    """A history with further tables, which only new views read."""

    dialect = "risingwave"

    def __init__(self, path, seed, buckets):
        super().__init__(path, seed, buckets)
        self.run(TABLES)
        self.run(
            f"CREATE SOURCE p (id int, k int, arrived timestamptz AS PROCTIME()) "
            f"WITH (connector = 'file', path = '{path}/s', format = 'csv')"
        )
        (path / "u").mkdir()
        self.run(
            f"CREATE TABLE upserted (k int PRIMARY KEY, x int) "
            f"WITH (connector = 'file', path = '{path}/u', format = 'csv')"
        )
        self.run("CREATE MATERIALIZED VIEW of_p AS SELECT id FROM p")

    def step(self, rows):
        now = (self.steps + 1) * 3
        random_ = random.Random(f"{self.seed} {self.steps} more")
        for name in ("new", "versions", *["quiet"] * (self.steps % 4 == 3)):
            values = []
            for number in range(rows):
                at = max(0, now - random_.choice([0, 0, 1, 2, 5, 9, 14, 40]))
                at = f"2026-01-01 00:{at // 60 % 60:02}:{at % 60:02}"
                k = random_.randrange(7)
                values.append(f"({k}, {number}, '{at}')" if name == "versions" else f"({number}, {k}, '{at}')")
            self.run(f"INSERT INTO {name} VALUES {', '.join(values)}")
        lines = [f"{random_.randrange(7)},{random_.randrange(50)}\n" for _ in range(4)]
        (self.path / "u" / f"{self.steps:05}.csv").write_text("k,x\n" + "".join(lines))
        super().step(rows)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 60)
    monkeypatch.setattr(workers, "LEAST_REPLAYS", 2)
    monkeypatch.setattr(backfill, "LEAST_REPLAYS", 2)
    monkeypatch.setattr(workers, "PIECE_S", 0)


def compared(
    tmp_path,
    monkeypatch,
    seed,
    names,
    buckets,
    least=1,
    *,
    made=Arrivals,
    scripts=None,
    others=("by_key", "matched", "of_e"),
):
    """Checks that the views of both ways are equal. least: the number of epochs beside each fill, at least."""
    random_ = random.Random(seed)
    before = random_.randrange(4, 7)
    scripts = scripts or [f"CREATE MATERIALIZED VIEW v{i} AS {QUERIES[name]}" for i, name in enumerate(names)]
    monkeypatch.setattr(workers, "PIECE_ROWS", 5 if names[0] in SMALL else 60)
    beside, alone = (made(tmp_path / way, seed, buckets) for way in ("beside", "alone"))
    with beside.connection, alone.connection, ThreadPoolExecutor(1) as other:
        for run in (beside, alone):
            for _ in range(before):
                run.step(60)
        in_turns(beside.connection.opened.engine)
        for script in scripts:
            filled = other.submit(beside.connection.cursor().execute, script)
            until_begun(beside, filled)
            steps = 0
            while not filled.done():
                step_beside(beside, 5)
                steps += 1
            filled.result()
            assert steps >= least, "the fill ran beside"
            with monkeypatch.context() as patched:
                patched.setattr(backfill, "can_run_beside", lambda *_: False)
                alone.run(script)
            for _ in range(steps):
                alone.step(5)
        for _ in range(3):
            for view in (*(f"v{i}" for i in range(len(names))), *others):
                assert beside.content(view) == alone.content(view), (names, view)
            for run in (beside, alone):
                run.step(5)


STREAMS = {
    "sessions": "SELECT k, count() AS n, sum(x) AS t FROM session(l, 5s) GROUP BY k, window_start, window_end",
    "tumbling": "SELECT k, window_start, count() AS n FROM tumble(l, 5s) GROUP BY k, window_start",
    "versions of keys": "SELECT l.id, v.y FROM l ASOF JOIN v ON l.k = v.id AND l.x >= v.y",
    "newest rows": "SELECT l.id, v.y FROM l LEFT JOIN v ON l.k = v.id",
    "latest": "SELECT l.id, a.id AS other FROM l LATEST JOIN a ON l.k = a.k",
    "range": "SELECT l.id, a.id AS other FROM l JOIN a ON l.k = a.k AND date_diff_within(4s)",
    "unique": "SELECT id, k FROM dedup(l, k, 8s)",
    "substreams": "SELECT k, x - lag(x) AS d FROM l PARTITION BY k",
}
#: Queries whose windows and keys end when their stream is idle.
IDLE_STREAMS = {
    "idle windows": "SELECT k, window_start, count() AS n FROM tumble(q, 5s) GROUP BY k, window_start "
    "EMIT AFTER WINDOW CLOSE WITH DELAY 1s AND TIMEOUT 5s",
    "idle sliding windows": "SELECT window_start, sum(x) AS t FROM hop(q, 4s, 12s) GROUP BY window_start "
    "EMIT AFTER WINDOW CLOSE AND TIMEOUT 4s",
    "idle sessions": "SELECT k, window_start, window_end, count() AS n FROM session(q, 4s) "
    "GROUP BY k, window_start, window_end EMIT AFTER WINDOW CLOSE AND TIMEOUT 7s",
    "idle substreams": "SELECT k, window_start, count() AS n FROM tumble(q, 5s) PARTITION BY k GROUP BY window_start "
    "EMIT TIMEOUT 5s",
    "idle keys": "SELECT k, count() AS n FROM q GROUP BY k EMIT AFTER KEY EXPIRE IDENTIFIED BY _tp_time "
    "WITH MAXSPAN 12s AND TIMEOUT 7s",
    "idle joined windows": "SELECT a.k, window_start, count() AS n FROM tumble(q, 5s) AS a JOIN table(l) AS b "
    "ON a.k = b.k GROUP BY a.k, window_start EMIT AFTER WINDOW CLOSE AND TIMEOUT 5s",
}


class Streams:
    """A history of streams of Timeplus, with the steps of `Run`."""

    dialect = "timeplus"

    def __init__(self, path, seed, buckets):
        path.mkdir()
        self.path, self.seed, self.steps = path, seed, 0
        self.connection = watersmeet.connect(
            path / "db", runtime="inprocess", dialect=self.dialect, parallelism=buckets
        )
        self.connection.opened.clock.set(BEGIN_US)
        for name in "laq":
            self.run(f"CREATE STREAM {name} (id int, k int, x int)")
        self.run("CREATE STREAM v (id int, y int) PRIMARY KEY id SETTINGS mode = 'versioned_kv'")
        self.run(
            "CREATE MATERIALIZED VIEW live AS SELECT k, count() AS n FROM l GROUP BY k SETTINGS seek_to = 'earliest'"
        )

    def run(self, sql):
        return self.connection.execute(sql).fetchall() if sql[:6] == "SELECT" else self.connection.execute(sql)

    def step(self, rows):
        self.steps += 1
        random_ = random.Random(f"{self.seed} {self.steps}")
        self.connection.opened.clock.set(BEGIN_US + self.steps * 3 * SECOND_US)
        for name in self.written(rows, random_):
            values = []
            for number in range(rows):
                at = max(0, self.steps * (1 if name == "q" else 3) - random_.choice([0, 0, 1, 2, 5]))
                at = f"'2026-01-01 00:{at // 60:02}:{at % 60:02}'"
                k, x = random_.randrange(7), random_.randrange(50)
                values.append(f"({k}, {x}, {at})" if name == "v" else f"({self.steps * 100 + number}, {k}, {x}, {at})")
            columns = "id, y, _tp_time" if name == "v" else "id, k, x, _tp_time"
            self.run(f"INSERT INTO {name} ({columns}) VALUES {', '.join(values)}")
        self.run("FLUSH")

    def written(self, rows, random_):
        return "lav"

    def content(self, name):
        return sorted(map(str, self.run(f"SELECT * FROM table({name})")))


class IdleStreams(Streams):
    """Streams of which few have rows in a short step. Times of q pass slowly, so that its rows are late once its clock
    has risen.
    """

    def written(self, rows, random_):
        return "lavq" if rows > 5 else random_.choice(["", "", "", "la", "q"])


TOPICS = {
    "records of groups": "SELECT TABLE c, COUNT(*) AS n, SUM(x) AS t FROM a GROUP BY c",
    "records of pairs": "SELECT TABLE a.c, a.x, b.x AS y FROM a JOIN b ON a._key = b._key",
    "records of rows": "SELECT TABLE c, x FROM a WHERE x % 3 > 0",
}


class Topics:
    """A history of topics of Lenses, with the steps of `Run`."""

    def __init__(self, path, seed, buckets):
        path.mkdir()
        self.seed, self.steps = seed, 0
        self.connection = watersmeet.connect(path / "db", runtime="inprocess", dialect="lenses", parallelism=buckets)
        self.connection.opened.clock.set(BEGIN_US)
        self.run("SET defaults.topic.autocreate = true")
        for name in "ab":
            self.run(f"CREATE TABLE {name} (c string, x int) FORMAT (string, json)")
        self.run("INSERT INTO live SELECT TABLE c, COUNT(*) AS n FROM b GROUP BY c")

    def run(self, sql):
        return self.connection.execute(sql).fetchall() if sql[:6] == "SELECT" else self.connection.execute(sql)

    def step(self, rows):
        self.steps += 1
        random_ = random.Random(f"{self.seed} {self.steps}")
        self.connection.opened.clock.set(BEGIN_US + self.steps * 3 * SECOND_US)
        for name in "ab":
            values = [
                f"('k{random_.randrange(9)}', 'c{random_.randrange(4)}', {random_.randrange(50)})" for _ in range(rows)
            ]
            self.run(f"INSERT INTO {name} (_key, c, x) VALUES {', '.join(values)}")
        self.run("FLUSH")

    def content(self, name):
        return sorted(map(str, self.run(f"SELECT * FROM {name}")))


@pytest.mark.parametrize("case", mostly_slow([(n, b) for b in (1, 2) for n in sorted(TOPICS)], 1))
def test_records_of_changes(tmp_path, monkeypatch, case):
    name, buckets = case
    script = f"INSERT INTO v0 {TOPICS[name]}"
    compared(tmp_path, monkeypatch, str(case), [name], buckets, made=Topics, scripts=[script], others=("live",))


@pytest.mark.parametrize("buckets", mostly_slow([1, 2], 1))
def test_history_of_a_log_is_the_content_at_its_beginning(tmp_path, monkeypatch, buckets):
    """It has no changes that arise because history is read in pieces, whether other views wait or not."""
    monkeypatch.setattr(workers, "PIECE_ROWS", 20)
    monkeypatch.setattr(workers, "FIRST_ROWS", 20)
    monkeypatch.setattr(workers, "MAX_ROWS", 20)
    logs = {"of_new": "n", "last": "id"}
    run = Arrivals(tmp_path, "log", buckets)
    with run.connection:
        run.run(
            "CREATE VIEW of_new AS SELECT k, count(*) AS n FROM new GROUP BY k;"
            "CREATE VIEW last AS SELECT k, max(id) AS id FROM new GROUP BY k"
        )
        for _ in range(3):
            run.step(60)
        found = []
        can_run_beside = backfill.can_run_beside
        for is_beside in (True, False):
            monkeypatch.setattr(
                backfill,
                "can_run_beside",
                lambda *given, is_beside=is_beside: found.append(can_run_beside(*given)) or (found[-1] and is_beside),
            )
            for name, column in logs.items():
                view, key = f"{name}_{is_beside}", f"k + {int(is_beside)} AS k"  # no view reads another one
                run.run(
                    f"CREATE MATERIALIZED VIEW {view} AS WITH c AS CHANGELOG FROM {name} "
                    f"SELECT {key}, {column}, changelog_op AS op FROM c"
                )
                content = run.run(f"SELECT {key}, {column} FROM {name}")
                assert run.content(view) == sorted(str((*row, 1)) for row in content)
        assert found == [True] * 4


@pytest.mark.parametrize("buckets", mostly_slow([1, 2], 1))
def test_stored_history_of_a_log_is_output_in_pieces(tmp_path, monkeypatch, buckets):
    monkeypatch.setattr(workers, "PIECE_ROWS", 20)
    run = Arrivals(tmp_path, "log", buckets)
    with run.connection:
        run.run("CREATE VIEW grouped AS SELECT id, k, count(*) AS n FROM new GROUP BY id, k")
        for _ in range(4):
            run.step(60)
        log = run.connection.opened.log
        before = log.head()
        run.run(
            "CREATE MATERIALIZED VIEW logged AS WITH c AS CHANGELOG FROM grouped "
            "SELECT id, k, n, changelog_op AS op FROM c"
        )
        logged = next(r.id for r in run.connection.opened.catalog.relations.values() if r.name == "logged")
        changes = [log.read(number).relations.get(logged) for number in range(before + 1, log.head() + 1)]
        sizes = [change.inserted_rows for change in changes if change is not None]
        content = run.run("SELECT id, k, n FROM grouped")
        assert run.content("logged") == sorted(str((*row, 1)) for row in content)
        assert sum(sizes) == len(content)
        assert max(sizes) < len(content) / 2


JOINS = {
    "pairs by a column": "SELECT TABLE a.c, a.x, b.x AS y FROM a JOIN b ON a.c = b.c",
    "left join": "SELECT TABLE a.c, a.x, b.x AS y FROM a LEFT JOIN b ON a._key = b._key",
    "outer join": "SELECT TABLE a.x, b.x AS y FROM a OUTER JOIN b ON a._key = b._key",
}


@pytest.mark.parametrize("case", mostly_slow([(n, b) for b in (1, 2) for n in sorted(JOINS)], 2), ids=str)
def test_stored_history_of_records_of_joins_is_output_in_pieces(tmp_path, monkeypatch, case):
    """Each record has the time that it has if all of them are output in one epoch."""
    query, buckets = case
    monkeypatch.setattr(workers, "PIECE_ROWS", 20)
    random_ = random.Random(str(case))
    run = Topics(tmp_path / "topics", str(case), buckets)
    with run.connection:
        for _ in range(4):
            run.step(8)
            for name in "ab":
                keys = random_.sample(range(80), 40)
                rows = [f"('k{k}', 'c{random_.randrange(20)}', {random_.randrange(50)})" for k in keys]
                run.run(f"INSERT INTO {name} (_key, c, x) VALUES {', '.join(rows)}")
        run.run("FLUSH")
        sizes = []
        for view, is_beside in (("v0", True), ("v1", False)):
            with monkeypatch.context() as patched:
                if not is_beside:
                    patched.setattr(backfill, "can_run_beside", lambda *given: False)
                log = run.connection.opened.log
                before = log.head()
                run.run(f"INSERT INTO {view} {JOINS[query]}; FLUSH")
                changes = [c for n in range(before + 1, log.head() + 1) for c in log.read(n).relations.values()]
                sizes.append([c.inserted_rows for c in changes if c.inserted_rows])
        shown = [sorted(map(str, run.run(f"SELECT *, _meta.timestamp AS at FROM {v}"))) for v in ("v0", "v1")]
        assert shown[0] == shown[1]
        assert len(sizes[1]) == 1
        assert len(sizes[0]) > 2
        assert max(sizes[0]) < len(shown[0]) / 2


@pytest.mark.parametrize(
    "case", mostly_slow([(n, b) for b in (1, 2) for s in (STREAMS, IDLE_STREAMS) for n in sorted(s)], 2), ids=str
)
def test_streams(tmp_path, monkeypatch, case):
    name, buckets = case
    script = f"CREATE MATERIALIZED VIEW v0 AS {(STREAMS | IDLE_STREAMS)[name]} SETTINGS seek_to = 'earliest'"
    made = IdleStreams if name in IDLE_STREAMS else Streams
    compared(tmp_path, monkeypatch, str(case), [name], buckets, made=made, scripts=[script], others=("live",))


#: Queries whose second view shares operators with the first one, each with the roles of these in the first round.
SHARED = {
    "versions": (
        "SELECT e.id, v.x + {} AS x FROM e LEFT JOIN versions FOR SYSTEM_TIME AS OF e.at AS v ON e.k = v.k",
        {"versions": "replayed"},
    ),
    "change log": (
        "WITH c AS CHANGELOG FROM dim SELECT k + {} AS k, name, changelog_op AS op FROM c",
        {"changelog": "copied"},
    ),
    "late rows": ("SELECT s.id, e.id + {} AS other FROM s JOIN e ON s.k = e.k AND s.id < e.id + 3000", {}),
}
SHARED_STREAMS = {
    "sessions": (
        "SELECT k, count() + {} AS n FROM session(l, 5s) GROUP BY k, window_start, window_end",
        {"session": "copied", "aggregate": "copied", "arrivals": "copied"},
    ),
    "tumbling": ("SELECT k, window_start, count() + {} AS n FROM tumble(l, 5s) GROUP BY k, window_start", {}),
    "latest": ("SELECT l.id, a.id + {} AS other FROM l LATEST JOIN a ON l.k = a.k", {"arrange": "replayed"}),
    "substreams": (
        "SELECT k, x - lag(x) + {} AS d FROM l PARTITION BY k",
        {"window": "copied", "arrange": "copied"},
    ),
    "look-ups from now on": ("SELECT w.k, w.n + {} AS n FROM live AS w JOIN table(l) AS l ON l.k = w.k", {}),
}


@pytest.mark.parametrize(
    "case", mostly_slow([(n, b) for b in (1, 2) for s in (SHARED, SHARED_STREAMS) for n in sorted(s)], 2), ids=str
)
def test_operators_of_live_views(tmp_path, monkeypatch, case):
    """Operators that live views also have process later epochs on a clone of their state."""
    name, buckets = case
    query, roles = (SHARED | SHARED_STREAMS)[name]
    made, others, tail = Arrivals, ("by_key", "matched", "of_e"), ""
    if name in SHARED_STREAMS:
        made, others, tail = Streams, ("live",), " SETTINGS seek_to = 'earliest'" * ("now" not in name)
    scripts = [f"CREATE MATERIALIZED VIEW v{i} AS {query.format(i)}{tail}" for i in range(2)]
    begun = []

    def noted(circuit, history, *rest):
        begun.append({circuit.by_id[i].kind: role for i, role in history.roles.items()})
        return can_run_beside(circuit, history, *rest)

    can_run_beside = backfill.can_run_beside
    monkeypatch.setattr(backfill, "can_run_beside", noted)
    size = "change log" if name == "change log" else "look-up"  # of a small or a large history
    compared(
        tmp_path, monkeypatch, f"{name} {buckets}", [size] * 2, buckets, 2, made=made, scripts=scripts, others=others
    )
    assert begun[-1].items() >= roles.items(), begun[-1]


@pytest.mark.parametrize("case", mostly_slow([(n, b) for b in (1, 2) for n in sorted(QUERIES)], 3))
def test_each_kind(tmp_path, monkeypatch, case):
    name, buckets = case
    compared(tmp_path, monkeypatch, f"{name} {buckets}", [name], buckets)


KILLED = [
    "change log of groups",
    "look-up",
    "left on arrival",
    "only new final",
    "look-ups of a view",
    "versions",
    "idle windows",
    "idle sessions",
]


@pytest.mark.parametrize("name", mostly_slow(KILLED, 1))
def test_processes_that_end_at_any_moment(tmp_path, monkeypatch, name):
    """A copy of the files, as the next process finds them, continues with the fill. It is made after each epoch; with
    idle streams after each fifth step, because the time without rows begins with the process.
    """
    made, others, tail, lives = Arrivals, ("by_key", "matched", "of_e"), "", 1
    if name in IDLE_STREAMS:
        made, others, tail, lives = IdleStreams, ("live",), " SETTINGS seek_to = 'earliest'", 5
        monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 20)
    monkeypatch.setattr(workers, "PIECE_ROWS", 5 if name in SMALL else 30 if name in SHARED else 60)
    beside, alone = (made(tmp_path / way, name, 1) for way in ("beside", "alone"))
    begin = InProcessEngine.__init__

    def begun(engine, db):
        begin(engine, db)
        is_beside = db.layout.root.parent.name == "beside"
        db.clock.set(BEGIN_US + (beside if is_beside else alone).steps * 3 * SECOND_US)
        if is_beside:
            in_turns(engine)

    def end(run):
        engine = run.connection.opened.engine
        run.connection.opened.service(BackgroundFills).is_closing = True  # it reads no further piece
        engine._waiting -= 1
        step_ended(engine)
        run.connection.close()

    def connected(path):
        return watersmeet.connect(path, runtime="inprocess", dialect=made.dialect)

    for run in (beside, alone):
        for _ in range(5):
            run.step(60)
    script = f"CREATE MATERIALIZED VIEW filled AS {(QUERIES | IDLE_STREAMS)[name]}{tail}"
    if name in SHARED:
        for run in (beside, alone):
            run.run(f"CREATE MATERIALIZED VIEW first AS {SHARED[name][0].format(0)}")
    with monkeypatch.context() as patched:
        patched.setattr(InProcessEngine, "__init__", begun)
        in_turns(beside.connection.opened.engine)
        beside.run("SET background_ddl = true")
        beside.run(script)
        until_begun(beside)
        ended, steps, path = [], 0, beside.path / "db"
        while not any(r.name == "filled" and r.ready for r in beside.connection.opened.catalog.relations.values()):
            step_beside(beside, 5)
            steps += 1
            if steps % lives:
                continue
            copied = beside.path / f"db{steps}"
            with beside.connection.opened.engine._lock:
                shutil.copytree(path, copied)
                found = beside.connection.opened.log.last_epoch().frontier.backfill
            ended += [] if found is None else [found.round]
            end(beside)
            beside.connection, path = connected(copied), copied
        with monkeypatch.context() as waits:
            waits.setattr(backfill, "can_run_beside", lambda *_: False)
            alone.run(script)
        for step in range(1, steps + 1):
            alone.step(5)
            if not step % lives:
                alone.connection.close()
                alone.connection = connected(alone.path / "db")
    with beside.connection, alone.connection:
        assert len(ended) > 1
        assert ended[-1] > 0 or name not in SHARED, "live epochs are replayed on clones after a restart"
        for _ in range(3):
            for view in ("filled", *others):
                assert beside.content(view) == alone.content(view), view
            for run in (beside, alone):
                run.step(5)


@pytest.mark.parametrize("seed", mostly_slow(range(24), 2))
def test_several_views(tmp_path, monkeypatch, seed):
    random_ = random.Random(seed)
    names = random_.sample(sorted(QUERIES), 3)
    compared(tmp_path, monkeypatch, seed, names, random_.choice([1, 2]), least=0)
