"""Several writers through one server: random transactions of several clients, whose history is checked."""

from __future__ import annotations

import itertools
import random
import threading
import time

import psycopg
import pytest
from tests.histories import Append, Read, Transaction, problems
from tests.thorough import mostly_slow

TABLES = "ab"
KEYS = [t + str(i) for t in TABLES for i in range(3)]
MADE = "".join(
    f"CREATE TABLE {t} (id int PRIMARY KEY, list varchar);"
    f"INSERT INTO {t} VALUES {', '.join(f'({i}, {chr(39)}{chr(39)})' for i in range(3))};"
    f"CREATE MATERIALIZED VIEW {t}v AS SELECT id, list FROM {t};"
    for t in TABLES
)
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ALL = " UNION ALL ".join(f"SELECT '{t}' || id AS k, list FROM {t}" for t in TABLES)
ALL_OF_VIEWS = " UNION ALL ".join(f"SELECT '{t}' || id AS k, list FROM {t}v" for t in TABLES)


class Clients:
    """Clients that write a history together."""

    def __init__(self, served, seed: int) -> None:
        self.served = served
        self.seed = seed
        self.history: list[Transaction] = []
        self.failures: list[BaseException] = []
        self._clock = itertools.count(1)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            return next(self._clock)

    def run(self, number: int, transactions: int) -> None:
        rng = random.Random(self.seed * 100 + number)
        try:
            with self.served.connect(autocommit=True) as client:
                for _ in range(transactions):
                    made = Transaction(number, alone=rng.random() < 0.3)
                    (self._alone if made.alone else self._together)(client, rng, made)
                    with self._lock:
                        self.history.append(made)
        except BaseException as cause:
            self.failures.append(cause)

    def _alone(self, client: psycopg.Connection, rng: random.Random, made: Transaction) -> None:
        for _ in range(rng.randint(1, 3)):
            self._read(client, made, rng.choice((ALL, ALL_OF_VIEWS)))

    def _together(self, client: psycopg.Connection, rng: random.Random, made: Transaction) -> None:
        made.isolation = rng.choice(LEVELS)
        client.execute(f"BEGIN ISOLATION LEVEL {made.isolation}")
        try:
            for _ in range(rng.randint(1, 4)):
                if rng.random() < 0.4:
                    views = made.has_snapshot and not made.appends and rng.random() < 0.5
                    self._read(client, made, ALL_OF_VIEWS if views else ALL)
                else:
                    self._append(client, made, rng.choice(KEYS))
            gives_up = rng.random() < 0.15
            made.began = self.now()
            client.execute("ROLLBACK" if gives_up else "COMMIT")
            made.ended = self.now()
            made.committed = not gives_up
        except psycopg.errors.SerializationFailure:
            client.execute("ROLLBACK")

    def _read(self, client: psycopg.Connection, made: Transaction, query: str) -> None:
        began = self.now()
        rows = client.execute(query).fetchall()
        lists = {key: tuple(map(int, text.split(",")[1:])) for key, text in rows}
        made.steps.append(Read(began, self.now(), lists))

    def _append(self, client: psycopg.Connection, made: Transaction, key: str) -> None:
        with self._lock:
            number = next(self._numbers)
        began = self.now()
        client.execute(f"UPDATE {key[0]} SET list = list || ',{number}' WHERE id = {key[1:]}")
        made.steps.append(Append(began, self.now(), key, number))


@pytest.mark.parametrize("seed", mostly_slow(range(60), 1, 1))
def test_random_transactions_of_several_clients(serving, seed):
    served = serving(MADE + "FLUSH;")
    clients = Clients(served, seed)
    rng = random.Random(seed)
    threads = [threading.Thread(target=clients.run, args=(i, rng.randint(8, 15))) for i in range(4)]
    ended = threading.Event()

    def flush() -> None:
        while not ended.is_set():
            served.python.execute("FLUSH")
            time.sleep(0.01)

    flushing = threading.Thread(target=flush)
    for thread in (*threads, flushing):
        thread.start()
    for thread in threads:
        thread.join(300)
    ended.set()
    flushing.join(60)
    assert not clients.failures
    served.python.execute("FLUSH")
    rows = served.python.execute(ALL_OF_VIEWS).fetchall()
    final = {key: tuple(map(int, text.split(",")[1:])) for key, text in rows}
    assert problems(clients.history, final) == []
    assert sum(t.committed is True for t in clients.history) > 5
    served.python.execute("BEGIN")
    assert sorted(served.python.execute(ALL).fetchall()) == sorted(rows)


def done(
    client: int,
    *steps: Read | Append,
    committed: bool = True,
    at: tuple[int, int] = (90, 91),
    alone: bool = False,
    level: str = "READ COMMITTED",
):
    return Transaction(client, list(steps), alone, committed, *at, level)


PLANTED = {
    "lost": ([done(1, Append(1, 2, "a0", 1))], {"a0": ()}, "of a committed transaction"),
    "twice": ([done(1, Append(1, 2, "a0", 1))], {"a0": (1, 1)}, "twice"),
    "rolled back": ([done(1, Append(1, 2, "a0", 1), committed=False)], {"a0": (1,)}, "not committed"),
    "a part": (
        [Transaction(1, [Append(1, 2, "a0", 1), Append(3, 4, "a1", 2)], committed=None)],
        {"a0": (1,), "a1": ()},
        "a part of a transaction",
    ),
    "a read of what was rolled back": (
        [done(1, Append(1, 2, "a0", 1), committed=False), done(2, Read(5, 6, {"a0": (1,)}))],
        {"a0": ()},
        "was read as",
    ),
    "its own append is not read": (
        [done(1, Append(1, 2, "a0", 1), Read(3, 4, {"a0": ()}))],
        {"a0": (1,)},
        "a transaction that appended",
    ),
    "half of a transaction was read": (
        [
            done(1, Append(1, 2, "a0", 1), Append(3, 4, "a1", 2)),
            done(2, Read(5, 6, {"a0": (1,), "a1": ()}), alone=True),
        ],
        {"a0": (1,), "a1": (2,)},
        "there is no order",
    ),
    "two readers saw two writes in other orders": (
        [
            done(1, Append(1, 2, "a0", 1)),
            done(2, Append(1, 2, "b0", 2)),
            done(3, Read(5, 6, {"a0": (1,), "b0": ()}), alone=True),
            done(4, Read(5, 6, {"a0": (), "b0": (2,)}), alone=True),
        ],
        {"a0": (1,), "b0": (2,)},
        "there is no order",
    ),
    "a statement missed what was acknowledged": (
        [done(1, Append(1, 2, "a0", 1), at=(3, 4)), done(2, Read(5, 6, {"a0": ()}))],
        {"a0": (1,)},
        "there is no order",
    ),
    "a connection went back": (
        [
            done(1, Append(1, 2, "a0", 1)),
            done(2, Read(5, 6, {"a0": (1,)}), Read(7, 8, {"a0": ()}), alone=True),
        ],
        {"a0": (1,)},
        "there is no order",
    ),
    "both of two writers won": (
        [
            done(1, Append(1, 2, "a0", 1), at=(9, 10)),
            done(2, Append(3, 4, "a1", 2), at=(5, 6)),
        ],
        {"a0": (1,), "a1": (2,)},
        "both were committed",
    ),
    "a snapshot moved": (
        [
            done(1, Append(3, 4, "a0", 1), at=(5, 6)),
            done(2, Read(1, 2, {"a0": ()}), Read(7, 8, {"a0": (1,)}), level="REPEATABLE READ"),
        ],
        {"a0": (1,)},
        "there is no order",
    ),
    "a snapshot missed what was acknowledged": (
        [
            done(1, Append(1, 2, "a0", 1), at=(3, 4)),
            done(2, Read(5, 6, {"a0": ()}), level="SERIALIZABLE"),
        ],
        {"a0": (1,)},
        "there is no order",
    ),
    "a change since the snapshot was lost": (
        [
            done(1, Read(1, 2, {"b0": ()}), Append(7, 8, "a0", 1), at=(9, 10), level="REPEATABLE READ"),
            done(2, Append(3, 4, "a1", 2), at=(5, 6)),
        ],
        {"a0": (1,), "a1": (2,), "b0": ()},
        "both were committed",
    ),
    "write skew": (
        [
            done(1, Read(1, 2, {"b0": ()}), Append(3, 4, "a0", 1), at=(9, 10), level="SERIALIZABLE"),
            done(2, Read(1, 2, {"a0": ()}), Append(3, 4, "b0", 2), at=(11, 12), level="SERIALIZABLE"),
        ],
        {"a0": (1,), "b0": (2,)},
        "there is no order",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_checker_finds_what_is_wrong(name):
    history, final, wanted = PLANTED[name]
    found = problems(history, final)
    assert any(wanted in problem for problem in found), found


def test_the_checker_has_nothing_against_what_is_promised():
    """A statement outside of a transaction may show an older moment, also one of its own connection's."""
    history = [
        done(1, Append(1, 2, "a0", 1), at=(3, 4)),
        done(1, Read(5, 6, {"a0": (), "b0": ()}), alone=True),
        done(2, Append(1, 2, "b0", 2), Read(3, 4, {"a0": (), "b0": (2,)}), at=(7, 8)),
    ]
    assert problems(history, {"a0": (1,), "b0": (2,)}) == []


def test_the_checker_has_nothing_against_a_snapshot():
    """Later commits are not read; REPEATABLE READ permits write skew."""
    history = [
        done(1, Append(3, 4, "a0", 1), at=(5, 6)),
        done(2, Read(1, 2, {"a0": ()}), Read(7, 8, {"a0": (), "b0": ()}), level="REPEATABLE READ"),
        done(3, Read(1, 2, {"a0": ()}), Append(7, 8, "b0", 2), at=(9, 10), level="REPEATABLE READ"),
    ]
    assert problems(history, {"a0": (1,), "b0": (2,)}) == []


# ---- what READ COMMITTED does not promise, one by one


@pytest.fixture
def two(serving):
    served = serving("CREATE TABLE a (id int PRIMARY KEY, n int); INSERT INTO a VALUES (1, 0), (2, 0);"
                     "CREATE TABLE b (id int PRIMARY KEY, n int); INSERT INTO b VALUES (1, 0); FLUSH;")  # fmt: skip
    with served.connect() as one, served.connect() as other:
        yield one, other


def number(client: psycopg.Connection, table: str = "a") -> int:
    return client.execute(f"SELECT n FROM {table} WHERE id = 1").fetchone()[0]


def test_a_statement_sees_what_was_committed_since_the_one_before(two):
    one, other = two
    assert number(one) == 0
    other.execute("UPDATE a SET n = 1 WHERE id = 1")
    assert number(one) == 0
    other.commit()
    assert number(one) == 1


def test_an_update_with_a_value_that_was_read_before_may_lose_another_one(two):
    one, other = two
    assert number(one) == number(other) == 0
    other.execute("UPDATE a SET n = 0 + 1 WHERE id = 1")
    other.commit()
    one.execute("UPDATE a SET n = 0 + 1 WHERE id = 1")
    one.commit()
    assert number(one) == 1


def test_an_update_of_what_is_there_never_loses_another_one(two):
    one, other = two
    for client in two:
        client.execute("UPDATE a SET n = n + 1 WHERE id = 1")
    one.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        other.commit()
    other.execute("UPDATE a SET n = n + 1 WHERE id = 1")
    other.commit()
    assert number(other) == 2


def test_writers_of_other_rows_of_a_table_conflict_too(two):
    one, other = two
    one.execute("UPDATE a SET n = 1 WHERE id = 1")
    other.execute("UPDATE a SET n = 1 WHERE id = 2")
    other.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        one.commit()


def test_decisions_by_what_another_table_has_may_be_of_the_past(two):
    """Write skew: each transaction reads the table that the other one changes."""
    one, other = two
    assert number(one, "b") == number(other, "a") == 0
    one.execute("UPDATE a SET n = 1 WHERE id = 1")
    other.execute("UPDATE b SET n = 1 WHERE id = 1")
    one.commit()
    other.commit()
    assert (number(one, "a"), number(one, "b")) == (1, 1)
