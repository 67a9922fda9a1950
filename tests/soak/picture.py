"""The picture of a soak: memory, files, processor time and times over time, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.soak.measuring import Sample


def draw(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Writes the picture; the ending of `path` says of which kind. Needs matplotlib (the extra `demo`)."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "watersmeet"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    minutes = [s.seconds / 60 for s in samples]
    figure, (memory, held, work, times) = plt.subplots(4, 1, figsize=(9, 11), sharex=True, layout="constrained")
    figure.suptitle(title, fontsize=11)
    for name, label in (
        ("java_bytes", "Java"),
        ("workers_bytes", "workers, own"),
        ("main_bytes", "main, own"),
        ("main_mapped_bytes", "main, mapped"),
        ("workers_mapped_bytes", "workers, mapped"),
    ):
        memory.plot(minutes, [getattr(s, name) / 1e6 for s in samples], label=label, linewidth=1)
    memory.set_ylabel("MB")
    held.plot(minutes, [s.files for s in samples], label="files", linewidth=1)
    held.plot(minutes, [s.directory_bytes / 1e5 for s in samples], label="directory, 0.1 MB", linewidth=1)
    held.plot(minutes, [s.descriptors for s in samples], label="descriptors", linewidth=1)
    held.plot(minutes, [s.threads for s in samples], label="threads", linewidth=1)
    for name, label in (
        ("main_processor_ms", "main"),
        ("workers_processor_ms", "workers"),
        ("java_processor_ms", "Java"),
    ):
        work.plot(minutes, [getattr(s, name) for s in samples], label=label, linewidth=1)
    work.set_ylabel("processor, ms an epoch")
    for name, label in (("epoch_ms", "epoch"), ("flush_ms", "FLUSH"), ("select_ms", "SELECT")):
        times.plot(minutes, [getattr(s, name) for s in samples], label=label, linewidth=1)
    times.set_ylabel("ms")
    times.set_xlabel("minutes")
    for axes in (memory, held, work, times):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
