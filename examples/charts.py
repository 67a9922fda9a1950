"""The pictures that several demos draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # writes files, needs no screen
from cycler import cycler
from matplotlib import pyplot as plt

#: The palette of the console (`server/web/static/console.css`).
COLORS = ("#0b7285", "#c2571a", "#6741d9", "#5c7c1d", "#a61e6b", "#495057")
INK, QUIET, RULE = "#14242a", "#566a71", "#c6d1d4"
mpl.rcParams.update(
    {
        "axes.prop_cycle": cycler(color=COLORS),
        "axes.edgecolor": RULE,
        "axes.labelcolor": QUIET,
        "axes.titlecolor": INK,
        "grid.color": RULE,
        "text.color": INK,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
    }
)


def draw_bars(rows: Sequence[tuple[str, Any, Any]], titles: tuple[str, str], labels: tuple[str, str], path: Path):
    """Writes the PNG: for each name two numbers, side by side; the first row is at the top."""
    names = [name for name, _, _ in rows][::-1]
    figure, both = plt.subplots(1, 2, sharey=True, figsize=(9, 4.5), layout="constrained")
    for place, (axes, color) in enumerate(zip(both, COLORS[:2], strict=True)):
        axes.barh(names, [float(row[place + 1]) for row in rows][::-1], color=color)
        axes.set_title(titles[place], loc="left")
        axes.set_xlabel(labels[place])
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].xaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
