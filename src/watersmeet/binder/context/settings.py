"""A setting that views of all dialects have."""

from __future__ import annotations

from typing import Final

#: How many rows each join of a view may make in one epoch, 0 for any number.
JOIN_ROWS_SETTING: Final = "max_join_amplification_rows"
