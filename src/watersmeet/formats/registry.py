"""Loads schemas from a schema registry over HTTP, a file, a URL, an object store, or the statement itself.

The registry's interface is Confluent's, "Schema Registry API Reference", which other registries also implement.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.base import is_url
from watersmeet.system.secretvalues import revealed

#: The seconds after which a registry that does not answer counts as unavailable.
TIMEOUT_SECONDS: Final = 10

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]
Part = Literal["key", "value"]


def option_error(name: str, message: str, hint: str | None = None) -> Error:
    """The error CONNECTOR_OPTION for an option of a format."""
    return error("CONNECTOR_OPTION", f"{name}: {message}", hint=hint)


class UnknownSchemaError(Exception):
    """The registry lacks a schema, which the message identifies."""


@dataclass(frozen=True)
class Reference:
    """A schema that another schema imports: its name in the import, and its location."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry. id: 0 if unknown."""

    id: int
    kind: SchemaKind
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class _Credentials:
    username: str
    password: str

    def __repr__(self) -> str:
        return "…"


class Registry:
    """A registry with one or more addresses, of which the first that answers is used. Thread-safe.

    All methods raise OSError if no address answers, CONNECTOR_OPTION if it rejects the credentials.
    """

    def __init__(self, addresses: Sequence[str], username: str | None = None, password: str | None = None) -> None:
        self._addresses = [_address(text) for text in addresses]
        self._credentials = None if username is None else _Credentials(username, password or "")
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}

    def schema(self, id_: int) -> RegisteredSchema:
        """The schema with an id, cached forever. Raises UnknownSchemaError."""
        with self._lock:
            if id_ in self._by_id:
                return self._by_id[id_]
        found = self._ask("GET", f"/schemas/ids/{id_}")
        if found is None:
            raise UnknownSchemaError(f"the schema registry has no schema with the id {id_}")
        schema = _schema(id_, found)
        with self._lock:
            self._by_id[id_] = schema
        return schema

    def newest(self, subject: str) -> RegisteredSchema | None:
        """The newest schema of a subject; None for an unknown subject."""
        found = self._ask("GET", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return None if found is None else _schema(int(found["id"]), found)

    def version(self, reference: Reference) -> RegisteredSchema:
        """The schema of a reference. Raises UnknownSchemaError."""
        name = urllib.parse.quote(reference.subject, safe="")
        found = self._ask("GET", f"/subjects/{name}/versions/{reference.version}")
        if found is None:
            raise UnknownSchemaError(
                f'the schema registry has no version {reference.version} of the subject "{reference.subject}"'
            )
        return _schema(int(found["id"]), found)

    def register(self, subject: str, kind: SchemaKind, text: str) -> int:
        """The id of a schema of a subject, which is registered as a new version if the subject lacks it.

        Raises CONNECTOR_OPTION if the registry rejects it as invalid or incompatible with older versions.
        """
        body = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
        found = self._ask("POST", f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        if found is None:
            raise option_error("schema.registry", f'there is no subject "{subject}", and none can be made')
        return int(found["id"])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request; None for status 404."""
        problem: OSError | None = None
        for address in self._addresses:
            try:
                return self._ask_one(address, method, path, body)
            except OSError as cause:
                problem = cause
        assert problem is not None
        raise problem

    def _ask_one(self, address: str, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        request = urllib.request.Request(address + path, method=method, headers={"Accept": _TYPE})  # noqa: S310 -- checked
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", _TYPE)
        if self._credentials is not None:
            pair = f"{self._credentials.username}:{self._credentials.password}"
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 -- http(s), checked
                return json.loads(answer.read())
        except urllib.error.HTTPError as cause:
            with cause:
                return _refused(address, cause.code, cause.read())
        except urllib.error.URLError as cause:
            raise ConnectionError(f"the schema registry at {address} can't be reached: {cause.reason}") from cause
        except (http.client.HTTPException, ValueError) as cause:
            raise ConnectionError(f"the schema registry at {address} gives no answer that can be read") from cause


@cache
def _opened(addresses: tuple[str, ...], username: str | None, password: str | None) -> Registry:
    return Registry(addresses, username, password)


def open_registry(options: Mapping[str, str]) -> Registry | None:
    """The registry in the options of a format, shared by the process; None if they have none."""
    text = options.get("schema.registry")
    if text is None:
        return None
    addresses = tuple(part.strip() for part in revealed(text).split(",") if part.strip())
    if not addresses:
        raise option_error("schema.registry", "has no address")
    user, password = options.get("schema.registry.username"), options.get("schema.registry.password")
    return _opened(
        addresses, None if user is None else revealed(user), None if password is None else revealed(password)
    )


def subject_of(topic: str, part: Part, options: Mapping[str, str], record: str | None = None) -> str:
    """The subject of the schema of a topic's keys or values.

    record: the full name of the message, which some strategies use. `schema.registry.subject` names that of values.
    Source: RisingWave, "schema.registry.name.strategy"; Timeplus, "Kafka Schema Registry".
    """
    if part == "value" and (given := options.get("schema.registry.subject")) is not None:
        return given
    strategy = options.get("schema.registry.name.strategy", "topic_name_strategy")
    if strategy == "topic_name_strategy":
        return f"{topic}-{part}"
    if strategy not in ("record_name_strategy", "topic_record_name_strategy"):
        hint = "One of topic_name_strategy, record_name_strategy, topic_record_name_strategy."
        raise option_error("schema.registry.name.strategy", f'there is no strategy "{strategy}"', hint)
    if record is None:
        name = "key.message" if part == "key" else "message"
        raise option_error(name, f"{strategy} wants the name of the message", f"{name} = 'name'")
    return record if strategy == "record_name_strategy" else f"{topic}-{record}"


def _address(text: str) -> str:
    parsed = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise option_error("schema.registry", "an address is not of the form http://host:port")
    if parsed.username is not None:
        hint = "schema.registry.username and schema.registry.password are options of their own."
        raise option_error("schema.registry", "an address has credentials in it", hint)
    return f"{parsed.scheme}://{parsed.netloc}{parsed.path.rstrip('/')}"


def _schema(id_: int, found: Mapping[str, Any]) -> RegisteredSchema:
    references = tuple(Reference(r["name"], r["subject"], int(r["version"])) for r in found.get("references") or ())
    return RegisteredSchema(id_, found.get("schemaType") or "AVRO", found["schema"], references)


def _refused(address: str, code: int, body: bytes) -> None:
    """Returns None for status 404; raises an error for other failures."""
    if code == 404:
        return
    if code in (401, 403):
        raise option_error(
            "schema.registry",
            f"the registry at {address} refuses the credentials",
            "schema.registry.username, schema.registry.password",
        )
    if code >= 500 or code in (408, 425, 429):
        raise ConnectionError(f"the schema registry at {address} answers with the status {code}")
    raise _no_schema(address, code, body)


def _no_schema(address: str, code: int, body: bytes) -> Error:
    try:
        said = str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        said = ""
    return error(
        "CONNECTOR_OPTION",
        f"schema.registry: the registry at {address} refuses the request (status {code})",
        detail=said[:500] or None,
    )


_LOCATION: Final = "schema.location"

#: The option with the schema that was at the location when the relation was created.
KEPT_SCHEMA: Final = "schema.kept"


def with_kept_schema(options: Mapping[str, str]) -> dict[str, str]:
    """The options with the current schema at their location, unless they already contain one, so that the meaning of
    messages does not depend on the time of reading.

    Raises the errors of `schema_bytes`.
    """
    if _LOCATION not in options or KEPT_SCHEMA in options:
        return dict(options)
    return {**options, KEPT_SCHEMA: base64.b64encode(zlib.compress(_at(options[_LOCATION]))).decode()}


def schema_bytes(options: Mapping[str, str]) -> bytes | None:
    """The schema in the option `schema` (its text), or at `schema.location`: the stored one, else the current one; None
    without these options. Locations are paths and URLs: file, http, https, s3, gs, az.

    Raises OSError if a location is temporarily unavailable, CONNECTOR_OPTION if it has no schema.
    """
    if "schema" in options:
        return options["schema"].encode()
    if KEPT_SCHEMA in options:
        return zlib.decompress(base64.b64decode(options[KEPT_SCHEMA]))
    return None if _LOCATION not in options else _at(options[_LOCATION])


def _at(location: str) -> bytes:
    parsed = urllib.parse.urlsplit(location)
    if parsed.scheme in ("http", "https"):
        try:
            with urllib.request.urlopen(location, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 -- http(s), checked
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as cause:
            if cause.code >= 500:
                raise
            raise option_error(_LOCATION, f"{location} answers with the status {cause.code}") from cause
    if is_url(location):
        try:
            return storage.read_file(storage.path_at(location))
        except FileNotFoundError as cause:
            raise option_error(_LOCATION, f"there is no object {location}") from cause
    if parsed.scheme not in ("", "file"):
        hint = "file://, http(s)://, s3://, gs://, az:// or hdfs://"
        raise option_error(_LOCATION, f"addresses of {parsed.scheme}:// can't be read", hint)
    path = urllib.parse.unquote(parsed.path) if parsed.scheme == "file" else location
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as cause:
        raise option_error(_LOCATION, f'"{path}" can\'t be read: {cause.strerror}') from cause
