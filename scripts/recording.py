"""Draws docs/images/first-join.svg: the commands of the README in a terminal, from a real run of them.

python -m scripts.recording
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINE, _CHARACTER, _MARGIN = 19, 8.43, 16
_TYPING_SECONDS, _PAUSE_SECONDS = 0.03, 0.8
_STYLE = """
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d7dde4; white-space: pre;
         opacity: 0; animation: show 0.01s forwards; }
  .command { fill: #7fd1b9; } .file { fill: #8a94a0; }
  @keyframes show { to { opacity: 1; } }
  @media (prefers-reduced-motion: reduce) { text { opacity: 1; animation: none; } }
"""


def lines() -> list[tuple[str, str, float]]:
    """Class, text and second of each line: files of the README as `cat` shows them, commands, and their real output."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found: list[tuple[str, str, float]] = []
    now = 0.5
    with tempfile.TemporaryDirectory() as folder:
        for language, block in re.findall(r"^```(sql|console)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            if language == "sql":
                name = block.split("\n", 1)[0].removeprefix("-- ")
                (Path(folder) / name).write_text(block, encoding="utf-8")
                found += [("file", line, now) for line in block.rstrip().split("\n")]
                now += 2.5
                continue
            for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
                shown = command.replace(".venv/bin/", "")
                found.append(("command", f"$ {shown}", now))
                now += _TYPING_SECONDS * len(shown)
                run = command.replace(".venv/bin/watersmeet", f"{sys.executable} -m watersmeet")
                done = subprocess.run(["sh", "-c", run], cwd=folder, capture_output=True, text=True, check=True)
                found += [("output", line, now) for line in done.stdout.rstrip().split("\n") if line]
                now += _PAUSE_SECONDS
            found.append(("output", "", now))
    return found[:-1]


def picture(shown: list[tuple[str, str, float]]) -> str:
    """The terminal as an SVG whose lines appear in time; without animations it shows all of them."""
    width = round(max(len(text) for _, text, _ in shown) * _CHARACTER) + 2 * _MARGIN
    height = len(shown) * _LINE + 2 * _MARGIN
    rows = "\n".join(
        f'<text class="{kind}" x="{_MARGIN}" y="{_MARGIN + _LINE * (row + 0.75):g}"'
        f' style="animation-delay: {second:.2f}s" xml:space="preserve">{escape(text)}</text>'
        for row, (kind, text, second) in enumerate(shown)
        if text
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<title>Two commands create a join; two more change both sides of it</title>\n<style>{_STYLE}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#12171d"/>\n{rows}\n</svg>\n'
    )


if __name__ == "__main__":
    (ROOT / "docs" / "images" / "first-join.svg").write_text(picture(lines()), encoding="utf-8")
