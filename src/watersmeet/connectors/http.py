"""Reads whole documents over HTTP, the content of dictionaries; and the options of webhook tables.

ClickHouse, "HTTP(S)" among the sources of dictionaries; RisingWave, "Ingest data from webhook".
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from typing import IO, Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.catalog import External
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Condition, Reader, TableConnector
from watersmeet.connectors.files.tables import Refusing, file_connector, present_files, read_files
from watersmeet.errors import error
from watersmeet.system.process import scratch_folder
from watersmeet.system.secretvalues import revealed_options
from watersmeet.values.types import Schema

#: The prefix of options that are headers: `headers.<name>`.
HEADERS: Final = "headers."
#: The options of tables whose rows are requests. The clause VALIDATE sets the internal ones.
WEBHOOK_OPTIONS: Final = OptionSet(
    "webhook",
    (
        OptionSpec("is_batched", "Whether each line of a request is a row.", "flag", default=False),
        OptionSpec("validate.secret", "The secret that VALIDATE names.", secret=True, is_internal=True),
        OptionSpec("validate.condition.secret", "The condition of VALIDATE.", secret=True, is_internal=True),
    ),
)
_TIMEOUT_S: Final = 30
#: The status codes of temporary problems.
_PASSING: Final = (408, 425, 429)


class HttpReader(Reader):
    """The rows of the document at a URL."""

    def __init__(self, external: External) -> None:
        self._name = external.name
        self._options = http_options(external.options)
        self._body: bytes | None = None

    def columns(self) -> Schema | None:
        return None

    def version(self) -> Any:
        """A digest of the document, which is fetched once for this and for `read`."""
        return hashlib.sha256(self._got()).hexdigest()

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:  # noqa: ARG002
        with scratch_folder("document") as folder:
            path = folder / "document"
            path.write_bytes(self._got())
            source = present_files(self._name, columns, {**self._options.form, "path": str(path)})
            return read_files(source, columns, Refusing())

    def _got(self) -> bytes:
        if self._body is None:
            self._body = fetched(self._options)
        return self._body


class HttpOptions(NamedTuple):
    """The location of a document. headers: the headers of the request. form: the format as options of the file
    connector.
    """

    url: str
    headers: dict[str, str]
    form: dict[str, str]

    @property
    def shown(self) -> str:
        """The URL for messages, without its query string, which may contain a secret."""
        return self.url.partition("?")[0]


TABLE_OPTIONS: Final = OptionSet(
    "http",
    (
        OptionSpec("url", "The URL of the document.", is_needed=True),
        OptionSpec("format", "The format of the document.", is_needed=True),
        OptionSpec("credentials.user", "The user."),
        OptionSpec("credentials.password", "The password of the user.", secret=True),
        OptionSpec(HEADERS, "A header of the request, by its name.", "prefix", secret=True),
    ),
)


def http_options(given: dict[str, str]) -> HttpOptions:
    """The options `url`, `format`, `credentials.user`, `credentials.password`, `headers.<name>`. CONNECTOR_OPTION."""
    given = revealed_options(given)
    options = TABLE_OPTIONS.read(given)
    headers = options.under(HEADERS)
    url, form = options.text("url"), options.text("format")
    user, password = options.given("credentials.user"), options.given("credentials.password")
    if not url or not form:
        refuse(
            f'the source HTTP needs the option "{"format" if url else "url"}"',
            hint="Write HTTP(URL 'https://…' FORMAT 'CSV').",
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        refuse("the URL of the source HTTP has to begin with http:// or https:// and a host")
    if not url.isascii() or any(c <= " " for c in url):
        refuse("the URL of the source HTTP has characters that have to be written as %20 and the like")
    if parts.username is not None:
        refuse("user and password can't be in the URL", hint="Write CREDENTIALS(USER '…' PASSWORD '…').")
    for name, value in headers.items():
        if not name or not (name + value).isascii() or not (name + value).isprintable():
            refuse(f'header "{name}" has no name, or characters that a header can\'t have')
    if user is not None:
        token = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", **headers}
    return HttpOptions(url, headers, file_connector({"format": form}))


def fetched(options: HttpOptions) -> bytes:
    """The document.

    Raises CONNECTOR_OPTION for a permanent problem, RUNTIME_UNAVAILABLE for a temporary one. No message contains a
    secret.
    """
    request = urllib.request.Request(options.url, headers=options.headers)  # noqa: S310 -- http(s), checked
    opener = urllib.request.build_opener(_NoRedirects())
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as cause:
        with cause:
            raise _failure(options, cause.code, cause.headers.get("Location")) from None
    except (OSError, http.client.HTTPException) as cause:
        reason = getattr(cause, "reason", cause)
        raise error("RUNTIME_UNAVAILABLE", f"{options.shown} can't be read", detail=f"{reason}.") from None


def _failure(options: HttpOptions, status: int, location: str | None) -> Exception:
    if status >= 500 or status in _PASSING:
        return error("RUNTIME_UNAVAILABLE", f"{options.shown} can't be read: the server answers {status}")
    if status in (401, 403):
        hint = "Check CREDENTIALS and HEADERS."
    elif location is not None:
        hint = f"Redirects are not followed. Write that URL: {location.partition('?')[0]}"
    else:
        hint = "Check the URL."
    return error("CONNECTOR_OPTION", f"{options.shown} can't be read: the server answers {status}", hint=hint)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, because credentials are only for the server in the options."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Returns None, which makes the answer an error."""


TABLES: Final = {"http": TableConnector(HttpReader, TABLE_OPTIONS)}
