"""Objects of S3 and of what speaks its protocol, of Google's storage and of Azure's. The library, obstore, is an
extra.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.objectstores.base import (
    ENDPOINTS,
    Location,
    ObjectReplacedError,
    ObjectStat,
    StoreProblem,
    check_endpoint,
)
from watersmeet.system.process import library

#: An object up to this size is one request; a larger one is sent in parts, which takes two more …
_WHOLE_BYTES: Final = 64 << 20
#: … and one for each part of this size.
_PART_BYTES: Final = 16 << 20
#: Environment: whether requests to S3 are signed without a hash of what they send. That hash takes most of the time
#: that a core needs for sending, and an encrypted connection shows already whether anybody changed what was sent.
_UNSIGNED: Final = "AWS_UNSIGNED_PAYLOAD"
#: By the scheme of a URL: the class of the library.
_CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
#: And how the variables begin that it reads.
_VARIABLES: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CLIENT: Final = {"timeout": "30s", "connect_timeout": "5s"}
_RETRIES: Final = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}
#: What the library raises, by name: some are classes of its own, some Python's.
_DENIED: Final = ("PermissionDeniedError", "PermissionError", "UnauthenticatedError")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_SAID: Final = re.compile(r"<Message>([^<]*)</Message>")
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")
_ADDRESS: Final = re.compile(r"https?://\S+")
#: Words of servers for a bucket that is not there, and for keys that they do not know.
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_REFUSED: Final = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
    "401 Unauthorized",
    "403 Forbidden",
)
#: And for a bucket that is in another region than the one that was named.
_ELSEWHERE: Final = (
    "AuthorizationHeaderMalformed",
    "PermanentRedirect",
    "IllegalLocationConstraint",
    "without LOCATION",
)
_BAD_REQUEST: Final = "400 Bad Request"
#: What the library says where it finds no credentials in the environment.
_NO_CREDENTIALS: Final = ("instance metadata", "credential", "Account must be specified")
#: Where it looks for them then: what a machine of a cloud says of itself. Whatever the answer, there are none.
_OF_MACHINE: Final = ("169.254.169.254", "metadata.google.internal")


class CloudStore:
    """See `Store`."""

    def __init__(self, location: Location, settings: dict[str, str]) -> None:
        self._library = library("obstore", "object stores")
        make = getattr(library("obstore.store", "object stores"), _CLASSES[location.scheme])
        self._location = location
        endpoint = settings.get("endpoint", "")
        check_endpoint(endpoint)
        _check_environment(location.scheme, endpoint)
        plain = endpoint.startswith("http://")
        if "service_account_key" in settings:
            settings = {**settings, "service_account_key": _service_account(settings["service_account_key"])}
        client = {**_CLIENT, "allow_http": True} if plain else _CLIENT
        options: dict[str, Any] = {"client_options": client, "retry_config": _RETRIES, **settings}
        if location.scheme == "s3" and not plain and _UNSIGNED not in os.environ:
            options["unsigned_payload"] = True
        try:
            self._store: Any = make(location.bucket, **options)
        except Exception as cause:  # the library's own errors have no common public base; none has a value in it
            if any(word in str(cause) for word in _NO_CREDENTIALS):
                raise _problem(cause, location) from None
            raise error(
                "CONNECTOR_OPTION",
                f"the options of {location.shown} can't be used",
                detail=type(cause).__name__,
                hint=f"Check them, and the variables {_VARIABLES[location.scheme]}… of the environment.",
            ) from None

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._mended(FileExistsError):
                self._library.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        with self._mended():
            whole = sum(map(len, pieces)) <= _WHOLE_BYTES
            # An iterator is sent as it is, without being copied into one piece.
            data = pieces[0] if len(pieces) == 1 else iter(pieces)
            self._library.put(self._store, name, data, use_multipart=not whole, chunk_size=_PART_BYTES)

    def get(self, name: str) -> bytes:
        with self._mended(FileNotFoundError):
            return bytes(self._library.get(self._store, name).bytes())

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        options: dict[str, Any] = {"range": (begin, end)}
        if etag is not None:
            options["if_match"] = etag
        try:
            with self._mended(FileNotFoundError, ObjectReplacedError):
                return bytes(self._library.get(self._store, name, options=options).bytes())
        except ObjectReplacedError:
            self.stat(name)  # some servers say so of what is gone, too
            raise

    def stat(self, name: str) -> ObjectStat:
        with self._mended(FileNotFoundError):
            return _stat(self._library.head(self._store, name))

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._mended():
            for chunk in self._library.list(self._store, prefix or None, offset=after or None):
                # Not each server knows where to begin: Azure's of older versions, and Azurite, begin at the first.
                yield from ((name, _stat(found)) for found in chunk if (name := found["path"]) > after)

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)
        for begin in range(0, len(wanted), 1000):
            part = wanted[begin : begin + 1000]
            try:
                with self._mended(FileNotFoundError):
                    self._library.delete(self._store, part)
            except FileNotFoundError:  # as Azure says, and not which one, and whether it went on
                for name in part:
                    with contextlib.suppress(FileNotFoundError), self._mended(FileNotFoundError):
                        self._library.delete(self._store, name)

    def discard_unfinished(self, prefix: str) -> int:
        del prefix  # an object is there whole or not at all
        return 0

    @contextmanager
    def _mended(self, *expected: type[OSError]) -> Iterator[None]:
        """Errors of the library as those of `Store`. expected: what may be said of the object; a server that says
        something else of it (409 to whoever replaces it, for example) is asked again.
        """
        try:
            yield
        except GeneratorExit:
            raise
        except Exception as cause:
            problem = _problem(cause, self._location)
            if not isinstance(problem, (StoreProblem, *expected)):
                problem = _away(self._location, _said(str(cause)))
            raise problem from None


def _check_environment(scheme: str, endpoint: str) -> None:
    """INVALID_PARAMETER, by its name, for a variable that the library would panic at, or not name."""
    empty = [name for name in ENDPOINTS.get(scheme, ()) if os.environ.get(name) == ""]
    if empty and not endpoint:
        raise error("INVALID_PARAMETER", f"{empty[0]} is empty", hint="Write http://host:port, or unset it.")
    unsigned = os.environ.get(_UNSIGNED)
    if scheme == "s3" and unsigned is not None and unsigned.lower() not in ("true", "false"):
        raise error("INVALID_PARAMETER", f'{_UNSIGNED} is true or false, not "{unsigned}"')


def _service_account(given: str) -> str:
    """The key of a service account, which is a JSON document, mostly in base64."""
    if given.lstrip().startswith("{"):
        return given
    try:
        return base64.b64decode(given, validate=False).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise error("CONNECTOR_OPTION", "option gcs.credential is not a JSON document in base64") from None


def _stat(found: dict[str, Any]) -> ObjectStat:
    modified = found["last_modified"]
    return ObjectStat(found["size"], int(modified.timestamp() * 1000) * 1_000_000, found["e_tag"] or "")


def _problem(cause: Exception, location: Location) -> Exception:
    """What an error of the library means. It never has more of the server's answer than its code and message."""
    kind, text = type(cause).__name__, str(cause)
    if any(word in text for word in _NO_BUCKET):
        return StoreProblem(
            f"there is no {location.shown}", hint=f"Create the {location.kind}, or correct its name.", passes=False
        )
    if isinstance(cause, FileNotFoundError):
        return FileNotFoundError("the object is not there")
    if kind == "AlreadyExistsError" or isinstance(cause, FileExistsError):
        return FileExistsError("the object is there")
    if kind in ("PreconditionError", "NotModifiedError"):
        return ObjectReplacedError("the object was replaced")
    said = _said(text)
    asks_machine = any(address in text for address in _OF_MACHINE)
    if not asks_machine and (kind in _DENIED or any(word in text for word in _REFUSED)):
        return StoreProblem(
            f"access to {location.shown} is refused",
            detail=said,
            hint="Check the credentials, and the rights that they give.",
            passes=False,
        )
    if asks_machine or any(word in text for word in _NO_CREDENTIALS):
        return StoreProblem(
            f"there are no credentials for {location.shown}",
            hint="Give them as options, or in the environment of the process.",
            passes=False,
        )
    if any(word in text for word in _ELSEWHERE):
        return StoreProblem(
            f"{location.shown} is in another region",
            detail=said,
            hint="Name the region of the bucket: AWS_REGION, or the option s3.region_name.",
            passes=False,
        )
    return _away(location, said)


def _away(location: Location, said: str | None) -> StoreProblem:
    """The problem of a server that does not do what it is asked for now."""
    if said is not None and _BAD_REQUEST in said:  # an answer to HEAD has no more than that
        hint = "Check the credentials, the region, the address and the clock of this machine."
        return StoreProblem(f"{location.shown} refuses a request", detail=said, hint=hint, passes=True)
    return StoreProblem(
        f"{location.shown} can't be reached",
        detail=said,
        hint="Check that the server runs, and its address.",
        passes=True,
    )


def _said(text: str) -> str | None:
    code, said, status = (pattern.search(text) for pattern in (_CODE, _SAID, _STATUS))
    if code is not None:
        return code[1] if said is None else f"{code[1]}: {said[1]}"
    if status is not None:
        return status[1].strip()
    first = text.splitlines()[0] if text else ""
    reasons = ("timed out", "refused", "dns error", "reset")
    return (
        next((reason for reason in reasons if reason in text.lower()), None) or _ADDRESS.sub("…", first)[:200] or None
    )
