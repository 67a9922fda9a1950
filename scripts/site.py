"""Hooks of mkdocs.yml: pages of the repository's root become pages of the site, and API.md lists the public names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "", "SECURITY.md": "", "CHANGELOG.md": ""}
#: Names of PEP 249 that its text describes.
_OF_PEP_249 = re.compile(
    r"[A-Z]+|apilevel|paramstyle|threadsafety|__version__|(Date|Time|Timestamp)(FromTicks)?|Binary"
)


def public_names() -> list[str]:
    """The names in `watersmeet.__all__`."""
    tree = ast.parse((ROOT / "src" / "watersmeet" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError("watersmeet has no __all__")


def api_page() -> str:
    """The page of the Python API, which mkdocstrings fills from docstrings."""
    names = [name for name in public_names() if not _OF_PEP_249.fullmatch(name)]
    first = [
        "connect",
        "Connection",
        "Cursor",
        "join",
        "asof",
        "latest",
        "join_metrics",
        "once_per_batch",
        "register",
        "Error",
    ]
    rest = [name for name in names if name not in first]
    parts = "\n".join(f"::: watersmeet.{name}\n" for name in [*first, *rest])
    return (
        "# Python API\n\nWhich names does `watersmeet` have, and what do they return? [Python](for/python.md) and"
        " [joins of DataFrames](DATAFRAMES.md) show them in use. The module is a PEP 249 driver: its type objects and"
        f" constructors are PEP 249's.\n\n{parts}"
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages; decisions are in the site, but not in its navigation."""
    for source, name in _ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text).replace("](README.md", "](index.md")
        files.append(File.generated(config, name or source, content=text))
    files.append(File.generated(config, "API.md", content=api_page()))
    for file in files:
        if file.src_uri.startswith("decisions/"):
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as they are in the site: its root has the repository's pages; files that are no pages are only named."""
    depth = page.file.src_uri.count("/")
    up = "../" * depth
    for source, name in _ROOT_PAGES.items():
        markdown = markdown.replace(f"]({up}../{source}", f"]({up}{name or source}")
    markdown = re.sub(rf"\[([^\]]*)\]\((?:{re.escape(up)}\.\./)(?!\.\.)[^)]*\)", r"\1", markdown)
    return re.sub(r"\]\(LICENSE\)", "]", markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """PluginError if a page would fetch something from the network."""
    for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", output):
        if re.search(r"(?:src|href)=\"?(?:https?:)?//", tag):
            raise PluginError(f"{page.file.src_uri} would fetch from the network: {tag}")
    return output
