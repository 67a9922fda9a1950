"""Runs a soak and says whether it stayed right and flat. Exit code 1 if not."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.driving import Plan, Soak
from tests.soak.judging import TIMES, table, trends
from tests.soak.measuring import write_samples
from tests.soak.picture import draw


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    out = Path(options.out) if options.out else Path(tempfile.mkdtemp(prefix="watersmeet-soak-"))
    out.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seconds=options.minutes * 60,
        runtime=options.runtime,
        parallelism=options.parallelism,
        rate=options.rate,
        files_rate=options.files_rate,
        kill_worker_s=options.kill_worker_s,
        kill_source_s=options.kill_source_s,
        restart_s=options.restart_s,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="watersmeet-soak-db-") as directory:
        soak = Soak(Path(directory), plan, lambda line: print(line, flush=True))
        try:
            soak.run()
        finally:
            write_samples(out / "soak.csv", soak.samples)
            if options.keep_log:
                (out / "child.log").write_text((Path(directory) / "child.log").read_text(encoding="utf-8"))
    title = f"{options.minutes:g} minutes, {plan.runtime}, {plan.rate:g} transactions/s, {plan.files_rate:g} files/s"
    if options.picture:
        draw(soak.samples, Path(options.picture), title)
    epochs = sum(s.epochs for s in soak.samples)
    print(f"right at the end: {soak.steps:,} transactions, {len(soak.files):,} files, {epochs:,} epochs; {soak.faults}")
    try:
        found = trends(soak.samples, warm_up_s=options.warm_up_minutes * 60)
    except ValueError as problem:
        print(f"not judged: {problem}")
        return 1
    print(f"from minute {options.warm_up_minutes:g} on, the first and the last third:\n{table(found)}")
    print(f"measured: {out}/soak.csv")
    return int(any(t.grows for t in found if t.name not in TIMES or not options.shared_machine))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up-minutes", type=float, default=10.0, help="what comes before is not judged")
    parser.add_argument("--runtime", choices=("spark", "inprocess"), default="spark")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rate", type=float, default=20.0, help="transactions a second, each an epoch if possible")
    parser.add_argument("--files-rate", type=float, default=4.0, help="files a second")
    parser.add_argument("--kill-worker-s", type=float, default=60.0, help="a worker is killed so often; 0: never")
    parser.add_argument("--kill-source-s", type=float, default=0.0, help="so often Spark's query has to start again")
    parser.add_argument("--restart-s", type=float, default=0.0, help="kill -9 and start again so often; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared-machine", action="store_true", help="report times, do not judge them")
    parser.add_argument("--out", help="where soak.csv is written (default: a temporary directory)")
    parser.add_argument("--picture", help="draw this file (.svg or .png)")
    parser.add_argument("--keep-log", action="store_true", help="copy what the database's process printed, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
