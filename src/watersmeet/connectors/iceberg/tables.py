"""Tables of Iceberg as they are now: what external tables show, and the settings that name them.

Timeplus, "Iceberg External Stream".
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from watersmeet.catalog import External
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.readers import Condition, Reader
from watersmeet.connectors.lakes.client import (
    IcebergPlace,
    iceberg_catalog,
    iceberg_explained,
    iceberg_library,
    iceberg_place,
)
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.typemapping import can_read, columns_of, retyped, sql_type
from watersmeet.objectstores.base import is_local
from watersmeet.values.types import Schema, arrow_schema

#: The kind of such tables, and of databases of them.
ICEBERG: Final = "iceberg"
#: Conditions by the names of the library.
_TESTS: Final = {
    "=": "EqualTo",
    "<>": "NotEqualTo",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "IN": "In",
    "IS NULL": "IsNull",
    "IS NOT NULL": "NotNull",
}
_COMPARED: Final = ("integer", "bigint", "varchar", "date", "timestamp", "numeric")


class IcebergReader(Reader):
    """The rows of the newest snapshot."""

    narrows = True

    def __init__(self, external: External) -> None:
        self._options = external.options
        self._place = iceberg_place(external.options)

    def columns(self) -> Schema | None:
        return columns_of(self._place.what, self._table().schema().as_arrow())

    def version(self) -> Any:
        table = self._table()
        snapshot = table.current_snapshot()
        return str(table.metadata.table_uuid), snapshot and snapshot.snapshot_id, table.schema().schema_id

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        table, what = self._table(), self._place.what
        there = table.schema().as_arrow()
        for column in columns:
            if column.name not in there.names:
                refuse(f'{what} has no column "{column.name}"', hint=did_you_mean(column.name, there.names))
            kind = there.field(column.name).type
            if not can_read(kind, column.type):
                raise error(
                    "DATATYPE_MISMATCH", f'column "{column.name}" of {what} is {kind}, declared as {column.type.sql}'
                )
        with self._explained():
            tested = [_tested(c) for c in conditions if _is_tested(c, there)]
            rows = functools.reduce(operator.and_, tested) if tested else iceberg_library(_EXPRESSIONS).AlwaysTrue()
            scan = table.scan(row_filter=rows, selected_fields=tuple(c.name for c in columns))
            self._check_places(scan)
            found = scan.to_arrow()
        done = []
        for column in columns:
            values = retyped(found.column(column.name).combine_chunks(), column.type)
            if values.bad is not None and values.bad.any():
                raise error("INVALID_VALUE", f'a value of column "{column.name}" of {what} is not {column.type.sql}')
            done.append(values.column)
        return pa.Table.from_arrays(done, schema=arrow_schema(columns, positional=False))

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """The columns, and the conditions that are tested with the table's statistics."""
        there = self._table().schema().as_arrow()
        tested = [str(_tested(c)) for c in conditions if _is_tested(c, there)]
        where = f" where {' and '.join(tested)}" if tested else ""
        return f"columns {', '.join(c.name for c in columns)}{where}"

    def written(self) -> dict[str, str]:
        """See `iceberg.target`."""
        return dict(self._options)

    def _table(self) -> Any:
        """The table as it is now. UNDEFINED_OBJECT."""
        exceptions = iceberg_library("pyiceberg.exceptions")
        with self._explained():
            try:
                table = iceberg_catalog(self._place).load_table(self._place.table)
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError) as cause:
                raise error("UNDEFINED_OBJECT", f"there is no {self._place.what}") from cause
        self._check_place(table.metadata_location)
        return table

    def _check_places(self, scan: Any) -> None:
        for task in scan.plan_files():
            for file in (task.file, *task.delete_files):
                self._check_place(file.file_path)

    def _check_place(self, path: str) -> None:
        if is_local(path) and not is_local(self._options["warehouse.path"]):
            refuse(f"file {path} of {self._place.what} is of this machine, and the table is in a store")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with iceberg_explained(self._place, lambda text: error("RUNTIME_UNAVAILABLE", text)):
            yield


_EXPRESSIONS: Final = "pyiceberg.expressions"


def _is_tested(condition: Condition, there: pa.Schema) -> bool:
    """Whether the library keeps all rows that meet the condition here."""
    column = condition.column
    if column.name not in there.names:
        return False
    kind = sql_type(there.field(column.name).type)
    if not condition.values:
        return kind is not None
    return kind == column.type and column.type.name in _COMPARED


def _tested(condition: Condition) -> Any:
    test = getattr(iceberg_library(_EXPRESSIONS), _TESTS[condition.operator])
    scale = condition.column.type.scale
    digits = Decimal(1).scaleb(-scale) if condition.column.type.name == "numeric" and scale is not None else None
    values = [v.quantize(digits) if digits is not None and isinstance(v, Decimal) else v for v in condition.values]
    if condition.operator == "IN":
        return test(condition.column.name, values)
    return test(condition.column.name, *values)


TABLE_OPTIONS: Final = OptionSet(
    "iceberg of external tables",
    (
        OptionSpec("catalog_type", "The type of the catalog.", "choice", among=("rest", "sql", "jdbc"), default="rest"),
        OptionSpec("catalog_name", "The name of the catalog."),
        OptionSpec("catalog_uri", "The URL of the catalog.", is_needed=True),
        OptionSpec("catalog_credential", "The credential of a REST catalog, as `id:secret`.", secret=True),
        OptionSpec("catalog_token", "The token of a REST catalog.", secret=True),
        OptionSpec(
            "credential", "The credential of catalog and store, where they have none of their own.", secret=True
        ),
        OptionSpec("warehouse", "The directory or URL of the warehouse.", is_needed=True),
        OptionSpec("namespace", "The namespace of the table."),
        OptionSpec("table", "The table."),
        OptionSpec("storage_endpoint", "The URL of the store."),
        OptionSpec("storage_region", "The region of the store."),
        OptionSpec("storage_credential", "The credential of the store, as `key:secret`.", secret=True),
        OptionSpec("rest_catalog_sigv4_enabled", "Whether requests are signed by AWS's method.", "flag"),
        OptionSpec("rest_catalog_signing_region", "The region of the signature."),
        OptionSpec("rest_catalog_signing_name", "The service of the signature."),
        OptionSpec(
            "use_environment_credentials",
            "Accepted without effect: credentials of the environment are used unless others are given.",
            "flag",
            is_idle=True,
        ),
    ),
)


def iceberg_options(given: Mapping[str, str], namespace: str, table: str) -> dict[str, str]:
    """Settings of Timeplus as options of connector iceberg. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED.

    namespace, table: unless the settings say others.
    """
    options = TABLE_OPTIONS.read(given)
    options.check()
    kind = options.choice("catalog_type")
    both = options.text("credential")
    found = {
        "connector": ICEBERG,
        "catalog.type": kind,
        "catalog.name": options.text("catalog_name"),
        "catalog.uri": options.text("catalog_uri"),
        "catalog.credential": options.text("catalog_credential") or ("" if kind != "rest" else both),
        "catalog.token": options.text("catalog_token"),
        "warehouse.path": options.text("warehouse"),
        "database.name": options.text("namespace") or namespace,
        "table.name": options.text("table") or table,
        **_store(options, both),
    }
    if options.flag("rest_catalog_sigv4_enabled"):
        found |= {
            "catalog.rest.sigv4_enabled": "true",
            "catalog.rest.signing_region": options.text("rest_catalog_signing_region"),
            "catalog.rest.signing_name": options.text("rest_catalog_signing_name"),
        }
    for name, setting in (("catalog.uri", "catalog_uri"), ("warehouse.path", "warehouse")):
        if not found[name]:
            refuse(f'what is of type iceberg needs the setting "{setting}"', hint=f"Write {setting} = '…'.")
    return {name: value for name, value in found.items() if value}


def _store(options: Options, both: str) -> dict[str, str]:
    """How the store of the data is reached."""
    endpoint = options.text("storage_endpoint")
    credential = options.text("storage_credential") or both
    found: dict[str, str] = {"s3.region": options.text("storage_region")}
    if endpoint and (urlsplit(endpoint).hostname or "").endswith(".amazonaws.com"):
        endpoint = ""  # the bucket is in the paths of the table, and the service known
    found["s3.endpoint"] = endpoint
    if credential:
        key, colon, secret = credential.partition(":")
        if not colon:
            refuse("a credential of a store is written 'key:secret'")
        found |= {"s3.access.key": key, "s3.secret.key": secret}
    return found


def iceberg_tables(given: Mapping[str, str], namespace: str) -> list[str]:
    """The names of all tables of a namespace; none if there is no such namespace.

    CONNECTOR_OPTION, RUNTIME_UNAVAILABLE.
    """
    place = iceberg_place(iceberg_options(given, namespace, "any"))
    exceptions = iceberg_library("pyiceberg.exceptions")
    whole = IcebergPlace(place.catalog, place.properties, (place.table[0], "*"))
    with iceberg_explained(whole, lambda text: error("RUNTIME_UNAVAILABLE", text)):
        try:
            return sorted(name[-1] for name in iceberg_catalog(place).list_tables(place.table[0]))
        except exceptions.NoSuchNamespaceError:
            return []
