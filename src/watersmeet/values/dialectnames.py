"""The names of the dialects, for what needs no more of them; outside of `dialects/` no other module says one."""

from __future__ import annotations

from typing import Final

#: Those that come with Watersmeet.
DIALECTS: Final = ("risingwave", "lenses", "sqlstream", "timeplus")
#: The one that is spoken where none is named.
DEFAULT_DIALECT: Final = "risingwave"
