"""Types, times, watermarks and slices that all layers share, and their stored form. The package also has the names of
the dialects, for code that does not load the grammars.
"""

from __future__ import annotations

from typing import Final

DIALECTS: Final = ("risingwave", "lenses", "sqlstream", "timeplus")
DEFAULT_DIALECT: Final = "risingwave"
