"""Where a row of a query comes from, and why a row is missing: the query is run again, for that row alone."""

from __future__ import annotations

from watersmeet.lineage.absences import Search, origins_of
from watersmeet.lineage.asking import Asker
from watersmeet.lineage.origins import Came, Read
from watersmeet.lineage.steps import Step, drawn
from watersmeet.lineage.trees import Explained

__all__ = ["Asker", "Came", "Explained", "Read", "Search", "Step", "drawn", "origins_of"]
