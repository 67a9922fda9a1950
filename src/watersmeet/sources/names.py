"""Names of files as text."""

from __future__ import annotations


def shown_name(name: str) -> str:
    r"""The name for people, JSON and UTF-8: bytes that are no UTF-8 as `\xe9`.

    Python hands such bytes over as lone surrogates (PEP 383). The name itself stays as it is, so that the file is
    found; only what is shown or set aside takes this form.
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def plain_text(text: str) -> str:
    r"""The text with lone surrogates, which UTF-8 can't hold, as `\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()
