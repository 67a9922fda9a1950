"""`python -m benchmarks NAME [options]`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(
    p.stem
    for p in Path(__file__).parent.glob("*.py")
    if not p.stem.startswith("_")
    and p.stem
    not in (
        "changing",
        "data",
        "flink",
        "frame",
        "peers",
        "processes",
        "requestprices",
        "rounds",
        "slowstore",
        "spark",
        "timed",
    )
)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        for name in NAMES:
            text = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip().splitlines()[0]
            print(f"{name:24} {text}")
        return 2 if len(sys.argv) > 1 else 0
    module = importlib.import_module(f"benchmarks.{sys.argv[1]}")
    return module.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
