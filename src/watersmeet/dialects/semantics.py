"""What the same words mean in each dialect: one frozen table of defaults a dialect.

The binder and the session ask it, and nothing else, so that `if dialect ==` stands nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Semantics:
    """The defaults of a dialect.

    folds_names: names without quotes are in lower case. schema: the only one there is. unnamed: what a select item without alias is called in a view:
    `refused` unless it is a column or a call, `text` as it is written. repeated: a second column of one name under `*`:
    `kept`, or `qualified` by its relation (`right_stream.key`).
    continuous: a SELECT that names a stream runs until it is stopped; a bounded one says `table(stream)`.
    history: which rows of an append-only relation a continuous query sees: all, or only those that come after its start.
    enrichment: an append-only left side looks up a right one that changes or stands still: later changes on the right
    give nothing (RisingWave says so by FOR SYSTEM_TIME AS OF PROCTIME()); so ASOF decides each left row when it comes, out of the
    `keep_versions` newest records of its key. refused_joins: kinds of joins that it does not have. settings: what a query may
    say behind SETTINGS. join_max_buffered_bytes: how much a join of a view may keep; None: as much as there is.
    asof_without_equality: the message for an ASOF join without one.
    records: relations are topics: SELECT STREAM or TABLE says what their records are, every query gives its records' key and
    time beside what it selects, and `*` leaves these out.
    """

    folds_names: bool = True
    schema: str = "public"
    unnamed: Literal["refused", "text"] = "refused"
    repeated: Literal["kept", "qualified"] = "kept"
    continuous: bool = False
    history: Literal["all", "new"] = "all"
    enrichment: bool = False
    keep_versions: int = 3
    join_max_buffered_bytes: int | None = None
    refused_joins: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()
    records: bool = False
    asof_without_equality: str = "AsOf join requires at least 1 equal condition"


RISINGWAVE: Final = Semantics()

#: Document 003; rulings D-003-06, D-003-14 and D-003-17.
TIMEPLUS: Final = Semantics(folds_names=False, schema="default", unnamed="text", repeated="qualified", continuous=True, history="new",
                            enrichment=True, join_max_buffered_bytes=524_288_000, refused_joins=frozenset({"RIGHT", "CROSS"}),
                            settings=frozenset({"keep_versions", "join_algorithm", "join_max_buffered_bytes", "join_use_nulls", "max_join_range"}),
                            asof_without_equality="ASOF join needs at least one equal-join column")

#: Document 004, "Matching expression (ON)", "Streams and tables"; rulings D-004-04 and D-004-10.
LENSES: Final = Semantics(folds_names=False, unnamed="text", records=True)
