"""`python -m watersmeet` is the command. spark-submit takes this file."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Run as a file, Python would look for its own modules in this folder first, and find ours of the same names.
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(__file__)]
    from watersmeet.cli import main

    main()
