"""The pictures of the demos: delay against wind, and flights by maker of the plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no screen
from matplotlib import pyplot as plt

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


def draw_manufacturers(rows: Sequence[tuple[str, int, int | None]], path: Path) -> None:
    """Writes the PNG: the makers with the most flights, and how late their planes arrive on average.

    rows: (manufacturer, flights, minutes of arrival delay), the most flights first.
    """
    shown = [(name.title(), flights, (minutes or 0) / flights) for name, flights, minutes in rows[:10]][::-1]
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(9, 4.5), layout="constrained")
    left.barh([name for name, _, _ in shown], [flights for _, flights, _ in shown], color="tab:blue")
    right.barh([name for name, _, _ in shown], [delay for _, _, delay in shown], color="tab:orange")
    left.set_title("Flights out of New York by maker of the plane", loc="left")
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.set_xlabel("flights")
    right.set_xlabel("mean arrival delay (minutes)")
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
