"""`python -m watersmeet` is the command. spark-submit takes this file."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # If this file is run by its path, Python searches its folder first, and would find Watersmeet's modules instead of
    # the standard library's modules with the same names.
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(__file__)]
    from watersmeet.cli import main

    main()
