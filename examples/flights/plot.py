"""The picture of the demo of joins by time: delay against wind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.charts import plt

AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
QUERY = """
SELECT origin, knots, flights, departed, minutes / departed::double precision AS delay
FROM delay_by_wind WHERE knots IS NOT NULL AND departed > 0 ORDER BY origin, knots
"""


def draw(connection: Any, path: Path, period: str) -> None:
    """Writes the PNG: above the mean delay of departures by wind and airport, below how many flights there were.

    Classes of fewer than 30 flights are left out: their mean says nothing.
    """
    cursor = connection.cursor()
    cursor.execute(QUERY)
    rows = [row for row in cursor.fetchall() if row[2] >= 30]
    classes = sorted({row[1] for row in rows})
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=(3, 1.2), layout="constrained"
    )
    for place, (origin, name) in enumerate(AIRPORTS.items()):
        of_origin: Sequence[Any] = [row for row in rows if row[0] == origin]
        at = [classes.index(row[1]) for row in of_origin]
        above.plot(at, [row[4] for row in of_origin], marker="o", label=f"{name} ({origin})")
        below.bar([x + (place - 1) * 0.27 for x in at], [row[2] for row in of_origin], width=0.25)
    above.set_title(f"Wind and the delay of departures from New York's airports, {period}", loc="left")
    above.set_ylabel("mean departure delay (minutes)")
    above.set_ylim(bottom=0)
    above.grid(alpha=0.3)
    above.legend(frameon=False)
    below.set_ylabel("flights (log scale)")
    below.set_yscale("log")
    below.set_ylim(bottom=10)
    below.yaxis.set_major_formatter("{x:,.0f}")
    below.grid(axis="y", alpha=0.3)
    below.set_xlabel("wind at the airport in the last report before the scheduled departure (knots)")
    below.set_xticks(range(len(classes)), [f"{k}–{k + 4}" if k < 30 else "30 and more" for k in classes])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
