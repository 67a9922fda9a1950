"""Types, times, watermarks and slices that all layers share, and their stored form. The package also has the names of
the dialects, for code that does not load the grammars.
"""

from __future__ import annotations

from typing import Final, Literal

DIALECTS: Final = ("risingwave", "lenses", "sqlstream", "timeplus")
DEFAULT_DIALECT: Final = "risingwave"

#: The dialects, and variants of them that differ in the defaults of session variables: the values of `SET dialect`.
CHOICES: Final = (*DIALECTS, "postgres")

#: The version of PostgreSQL whose protocol and catalog are emulated; tools read the leading number.
POSTGRES_VERSION: Final = "15.0"

#: What a new row does to the row of its key: it replaces it, is ignored, or only sets its values that are not NULL.
ConflictAction = Literal["overwrite", "ignore", "fill"]

#: What happens to the rows that reference a row which is deleted, or whose key changes.
ReferenceAction = Literal["no action", "restrict", "cascade", "set null", "set default"]
