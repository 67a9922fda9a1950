"""A process that tests kill: `python -m tests.simulation.process PATH SEED` applies numbered changes for ever.

It says "ready", then the number of each change that was acknowledged, then the condition that ended it and why.
"""

from __future__ import annotations

import sys

import watersmeet
from tests.spark.worker import SETUP, changes


def main(path: str, seed: int) -> None:
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        execute = connection.execute
        execute(SETUP)
        execute("CREATE TABLE IF NOT EXISTS done (n int PRIMARY KEY)")
        print("ready", flush=True)
        execute("FLUSH")
        number = execute("SELECT coalesce(max(n), -1) + 1 FROM done").fetchone()[0]
        try:
            while True:
                execute("BEGIN")
                for statement in changes(number, seed):
                    execute(statement)
                execute(f"INSERT INTO done VALUES ({number})")
                execute("COMMIT")
                print(number, flush=True)
                if number % 3 == 0:
                    execute("FLUSH")
                if number % 7 == 3:
                    connection.opened._compactor.run()
                number += 1
        except watersmeet.Error as failure:
            print(failure.condition, failure.message, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
