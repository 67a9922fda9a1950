"""Runs seeds and shows what happened: `python -m tests.simulation FROM [TO]`. With one seed, shows every step."""

from __future__ import annotations

import sys
import time
import traceback

from tests.simulation.case import Knobs, run


def main(first: int, last: int) -> int:
    failed = 0
    for seed in range(first, last):
        began_s = time.process_time()
        try:
            world, result = run(seed), "fine"
        except Exception as cause:
            world, result = cause.world, f"FAILED in {cause.world.failed_in}: {cause}"
            failed += 1
            if last == first + 1:
                traceback.print_exc()
        if last == first + 1:
            print(Knobs.of(seed), *world.notes, sep="\n")
        seconds = time.process_time() - began_s
        print(f"{seed}: {result[:300]} ({world.steps} steps, trace {world.digest:08x}, {seconds:.2f} s)", flush=True)
    print(f"{failed} of {last - first} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(main(numbers[0], numbers[1] if len(numbers) > 1 else numbers[0] + 1))
