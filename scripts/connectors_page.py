"""Writes docs/CONNECTORS.md, the reference of all options, from the options that connectors declare."""

from pathlib import Path

from watersmeet.connectors.reference import page

if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "CONNECTORS.md").write_text(page(), encoding="utf-8")
