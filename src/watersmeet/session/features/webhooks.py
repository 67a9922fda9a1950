"""Webhook tables: CREATE TABLE with connector = 'webhook', and the rows of requests.

RisingWave, "Ingest data from webhook". A request is a row whose columns are the fields of its JSON body; or the body is
the value of the only column, if that is jsonb. The condition after VALIDATE, `secure_compare(…, …)`, compares two texts
that are computed from the headers, the body and a secret, in constant time. Only a table with a condition accepts
requests without a user.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.capture.receiving import decoder_of_received
from watersmeet.catalog import GeneratedColumn, MessageFormat, ReceivedTable, Relation, WebhookTable
from watersmeet.connectors.base.messages import MessageSpec, new_decoder
from watersmeet.connectors.http import WEBHOOK_OPTIONS
from watersmeet.database.assignment import bound_value, positional
from watersmeet.database.definitions import add, check_columns, may_create, new_relation
from watersmeet.database.secrets import kept, with_secrets
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.database.writing import deliver
from watersmeet.dialects.schemas import find_relation
from watersmeet.dialects.statements.sourceclauses import VALIDATE_SECRET, CreateWebhookTable
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error, error
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context
from watersmeet.formats.payloads import HEADERS, Messages, documents
from watersmeet.kernel.evaluation.expressions import generated_values
from watersmeet.kernel.metrics import Counters
from watersmeet.session.clauses import refuse_serials, table_fields
from watersmeet.session.handlers import handles
from watersmeet.system.secretvalues import referred, revealed
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BYTEA, JSONB, VARCHAR, Field

_CONDITION: Final = "validate.condition.secret"
#: The names of the headers (whose own names are lower-case) and of the body in a condition. A single jsonb column names
#: the body instead.
_HEADERS, _BODIES = "headers", ("payload", "data")
#: Headers of requests that select how RisingWave decodes JSON; the value of the first two has no alternative.
_MODES: Final = "x-rw-webhook-"
_FIXED: Final = {"format": "plain", "encode": "json"}
_ZONED: Final = "json-timestamptz-handling-mode"


@dataclass(frozen=True)
class _Sides:
    """The texts that the condition compares, over `reads`."""

    given: GeneratedColumn
    expected: GeneratedColumn


@handles(CreateWebhookTable)
def create_webhook_table(session: Session, statement: CreateWebhookTable) -> Result:
    """CREATE TABLE with connector = 'webhook'. Its options contain the condition as a secret, because the condition may
    contain one in clear text.
    """
    statement = with_secrets(session, statement)
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE TABLE")
    with located(statement, statement.name_span):
        WEBHOOK_OPTIONS.read(statement.options).check()
    options = {n: v for n, v in statement.options.items() if n != "connector"}
    check_columns(statement.columns, statement)
    refuse_serials(statement)
    fields = table_fields(session, statement)
    table = new_relation(session, statement, WebhookTable, statement.columns, options=options, **fields)
    new_decoder(_spec(table))  # raises the errors of columns that can't be read from JSON
    if statement.condition is not None:
        whole = _whole(table)
        sides = _sides(statement, statement.condition, (whole,) if whole else _BODIES)
        table = kept(session, replace(table, options={**options, _CONDITION: json.dumps(to_json(sides))}))
    add(session, table)
    return Result("CREATE TABLE")


def _sides(statement: CreateWebhookTable, condition: exp.Expression, body: tuple[str, ...]) -> _Sides:
    if condition.name.lower() != "secure_compare" or len(condition.expressions) != 2:
        raise error_at(
            statement,
            node_span(condition),
            "FEATURE_NOT_SUPPORTED",
            "VALIDATE of another condition than secure_compare(…, …) is not supported",
            hint="Write VALIDATE SECRET s AS secure_compare(headers->>'name of a header', expression).",
        )
    secret = referred(statement.options.get(VALIDATE_SECRET, ""))
    known = (Field(_HEADERS, JSONB), *(Field(n, BYTEA) for n in body), *([Field(secret, VARCHAR)] if secret else ()))
    if len({c.name for c in known}) < len(known):
        raise error_at(
            statement,
            node_span(condition),
            "DUPLICATE_COLUMN",
            f'"{secret}" is the name of a secret and of a part of the request',
        )

    def side(tree: exp.Expression) -> GeneratedColumn:
        value = bound_value(tree, known, statement.name, statement.text, "VALIDATE")
        return positional(cast(value, VARCHAR, Context(statement.text, "VALIDATE"), tree), known)

    return _Sides(*map(side, condition.expressions))


def _whole(table: WebhookTable) -> str:
    """The column of the whole body, or "" if the columns are the fields of the body."""
    own = [c for c in table.given if c.name not in table.message_parts]
    return own[0].name if [c.type for c in own] == [JSONB] else ""


def _spec(table: WebhookTable, mode: str = "") -> MessageSpec:
    """Describes how requests are decoded: the whole body as bytes, or JSON with a mode of timestamps."""
    form = MessageFormat(bad_field="null", options={"timestamptz.handling.mode": mode} if mode else {})
    columns, whole = table.given, _whole(table)
    if whole:
        columns = tuple(replace(c, type=BYTEA) if c.name == whole else c for c in columns)
        form = MessageFormat(encoding="bytes")
    return MessageSpec(columns, table.primary_key, form, table.message_parts)


def check_read_columns(before: Relation, after: Relation) -> None:
    """Raises the errors of new columns of a table that another system fills. A webhook table whose only column has the
    whole body can't become one of the fields of the body, or the reverse.
    """
    if isinstance(after, ReceivedTable):
        decoder_of_received(after)
    if not isinstance(before, WebhookTable) or not isinstance(after, WebhookTable):
        return
    if bool(_whole(before)) != bool(_whole(after)):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"{before.title} can't have this column added or dropped: a single column of type jsonb has the whole body",
            hint="A view can read its fields: SELECT data ->> 'a' AS a.",
        )
    new_decoder(_spec(after))


def reads_field(relation: Relation, name: str) -> bool:
    """Whether a column of a table that another system fills is a field of its messages, which has the column's name."""
    if not isinstance(relation, WebhookTable | ReceivedTable) or name in relation.message_parts:
        return False
    return (
        not _whole(relation)
        if isinstance(relation, WebhookTable)
        else relation.format is None or relation.format.encoding != "bytes"
    )


def webhook_table(session: Session, schema: str, name: str) -> WebhookTable | None:
    """The webhook table that the session sees under a name, or None."""
    found = find_relation(session.catalog, name, schema, folded=False)
    return found if isinstance(found, WebhookTable) and not found.staged else None


def is_validated(table: WebhookTable) -> bool:
    """Whether requests must meet the condition of a table."""
    return _CONDITION in table.options


def receive(session: Session, table: WebhookTable, headers: Mapping[str, str], body: bytes) -> None:
    """Commits the rows of a request. headers: by lower-case name.

    Raises AUTHENTICATION_FAILED if it does not meet the condition, PERMISSION_DENIED if the user of the session may not
    insert, INVALID_VALUE for a body that can't be read, UNDEFINED_RELATION if the table was dropped meanwhile.
    """
    if is_validated(table) and not _meets(table, headers, body):
        raise error("AUTHENTICATION_FAILED", "the signature of the request is wrong or missing")
    session.require_writer("a webhook")
    session.require("INSERT", table, None)
    batched = WEBHOOK_OPTIONS.read(table.options).flag("is_batched")
    lines = [line for line in body.split(b"\n") if line.strip()] if batched else [body]
    rows = _rows(table, headers, lines)
    with session.database.guard:
        now = session.database.catalog.relations.get(table.id)
        if now is None:
            raise error("UNDEFINED_RELATION", f'table "{table.shown}" was dropped')
        deliver(session, now, rows)


def _meets(table: WebhookTable, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether both sides of the condition are the same text. A side whose computation fails is NULL, as is a missing
    header, and equals nothing.
    """
    sides = from_json(_Sides, json.loads(revealed(table.options[_CONDITION])))
    secret = table.options.get(VALIDATE_SECRET, "")
    values: dict[str, Any] = {_HEADERS: json.dumps(dict(headers)), referred(secret) or "": revealed(secret)}

    def text(side: GeneratedColumn) -> str | None:
        given = {c.name: pa.array([values.get(c.name, body)], c.type.arrow) for c in side.reads}
        found = generated_values(pa.table(given), Field("side", VARCHAR), side.reads, side.sql, Counters())[0].as_py()
        return found if found is None else str(found)

    given, expected = text(sides.given), text(sides.expected)
    if given is None or expected is None:
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _rows(table: WebhookTable, headers: Mapping[str, str], lines: list[bytes]) -> pa.Table:
    """The rows of the lines of a request. Raises INVALID_VALUE if one can't be read."""
    pairs = [{"key": name, "value": value.encode()} for name, value in headers.items()]
    messages = Messages(
        table.shown,
        0,
        pa.nulls(len(lines), pa.binary()),
        pa.array(lines, pa.binary()),
        np.arange(len(lines), dtype=np.int64),
        None,
        pa.array([pairs] * len(lines), HEADERS),
    )
    try:
        decoded = new_decoder(_spec(table, _mode(headers))).decode(messages)
    except Error as problem:
        raise error("INVALID_PARAMETER", problem.message) from None
    found, unread = decoded.table, dict(decoded.unreadable)
    if whole := _whole(table):
        made = documents(found.column(whole).combine_chunks())
        unread = {} if made.bad is None else dict.fromkeys(np.flatnonzero(made.bad).tolist(), "it is not JSON")
        found = found.set_column(found.column_names.index(whole), whole, made.column)
    if unread:
        place, reason = min(unread.items())
        where = f"line {place + 1} of the body" if len(lines) > 1 else "the body"
        raise error("INVALID_VALUE", f"{where} can't be read: {reason}", detail="Nothing was inserted.")
    return found


def _mode(headers: Mapping[str, str]) -> str:
    """The mode of timestamps with time zone that the headers select, or "". Raises INVALID_PARAMETER for a header that
    selects something else than the default.
    """
    for name, value in headers.items():
        own = name.removeprefix(_MODES)
        if own not in (name, _ZONED) and _FIXED.get(own) != value.lower():
            raise error("INVALID_PARAMETER", f'header {name} with "{value}" is not supported', hint="Leave it out.")
    return headers.get(_MODES + _ZONED, "")
