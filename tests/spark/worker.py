"""A process that tests kill: opens a database and applies numbered changes from where it left off.

The table `t` of the database says how far it came: change n writes row n. Some changes
are followed by another number of buckets.
Usage: worker.py PATH PARALLELISM SEED [shuffles]: also small epochs are shuffled then.
"""

from __future__ import annotations

import random
import sys
import time

import watersmeet
from watersmeet.runtime.spark import jobs

SETUP = """
CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, k int, v double precision);
CREATE TABLE IF NOT EXISTS u (id int PRIMARY KEY, k int, w int);
CREATE MATERIALIZED VIEW IF NOT EXISTS joined AS
    SELECT t.id AS tid, u.id AS uid, t.k, t.v, u.w FROM t FULL JOIN u ON t.k = u.k AND t.id <> u.id;
CREATE MATERIALIZED VIEW IF NOT EXISTS report AS
    SELECT k, count(*) AS n, sum(v) AS v, max(w) AS w FROM joined GROUP BY k;
"""
QUERIES = {
    "joined": "SELECT t.id AS tid, u.id AS uid, t.k, t.v, u.w FROM t FULL JOIN u ON t.k = u.k AND t.id <> u.id",
    "report": "SELECT k, count(*) AS n, sum(v) AS v, max(w) AS w FROM (SELECT t.k, t.v, u.w FROM t FULL JOIN u "
    "ON t.k = u.k AND t.id <> u.id) q GROUP BY k",
}


def changes(number: int, seed: int) -> list[str]:
    """The statements of transaction `number`: the same whenever asked.

    DuckDB, the judge, sums these doubles exactly.
    """
    r = random.Random(f"{seed}-{number}")
    key = r.randint(0, 40)
    found = [
        f"INSERT INTO t VALUES ({number + 1000}, {key}, {r.choice(['0.5', '1024.25', '-2.5'])})",
        f"INSERT INTO u VALUES ({number % 60}, {r.randint(0, 40)}, {number})",
    ]
    if r.random() < 0.4:
        found.append(f"DELETE FROM t WHERE k = {r.randint(0, 40)} AND id < {number + 1000}")
    if r.random() < 0.4:
        found.append(f"UPDATE u SET k = {r.randint(0, 40)} WHERE id = {r.randint(0, 59)}")
    return found


def main(path: str, parallelism: int, seed: int) -> None:
    with watersmeet.connect(path, parallelism=parallelism) as connection:
        cursor = connection.cursor()
        cursor.execute(SETUP)
        cursor.execute("CREATE TABLE IF NOT EXISTS done (n int PRIMARY KEY)")
        print("ready", flush=True)  # from here on readers find all that they read
        cursor.execute("FLUSH")
        cursor.execute("SELECT coalesce(max(n), -1) FROM done")
        number = cursor.fetchone()[0] + 1
        while True:
            cursor.execute("BEGIN")
            for statement in changes(number, seed):
                cursor.execute(statement)
            cursor.execute(f"INSERT INTO done VALUES ({number})")
            cursor.execute("COMMIT")
            if number % 8 == 5:
                cursor.execute(f"ALTER DATABASE SET parallelism = {random.Random(number).choice([1, 3, 8])}")
            number += 1
            time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[4:]:
        jobs.SMALL_ROWS = -1
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
