"""Session variables of Lenses: how topics are made that processors write."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.variables import Variable, flag

LENSES: Final = (
    flag("defaults.topic.autocreate", False, "A processor makes its target topic (Lenses).", effect=True),
    Variable(
        "defaults.topic.partitions",
        "integer",
        "1",
        "Partitions of topics that are created for processors (Lenses).",
        effect=True,
        least=1,
    ),
    Variable(
        "defaults.topic.replication",
        "integer",
        "1",
        "Copies of topics that are created for processors (Lenses).",
        least=1,
        system="Lenses",
    ),
    Variable(
        "defaults.topic.watermark_idle_timeout",
        "interval",
        "",
        "How long a new topic may be silent before it no longer holds anything back; empty: for ever (Lenses).",
        effect=True,
    ),
)
