"""Libraries that only some users need: extras, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from watersmeet.errors import error

#: By library: the extra that installs it, and what it is called there.
_EXTRAS: Final = {
    "aiohttp": ("serve", "aiohttp"),
    "confluent_kafka": ("kafka", "confluent-kafka"),
    "deltalake": ("delta", "deltalake"),
    "fastavro": ("kafka", "fastavro"),
    "google": ("kafka", "protobuf"),
    "hdfs_native": ("hdfs", "hdfs-native"),
    "obstore": ("objectstores", "obstore"),
    "opentelemetry": ("telemetry", "opentelemetry-sdk"),
    "polars": ("kafka", "polars"),
    "prometheus_client": ("serve", "prometheus-client"),
    "psycopg": ("postgres", "psycopg"),
    "pyiceberg": ("iceberg", "pyiceberg"),
    "pymysql": ("mysql", "pymysql"),
}


def library(module: str, user: str) -> ModuleType:
    """The module of that name, of a library of an extra. user: what needs it, in the plural, for the message.

    LIBRARY_MISSING, with what to type, if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        extra, name = _EXTRAS[module.partition(".")[0]]
        raise error(
            "LIBRARY_MISSING",
            f"{user} need the library {name}, which is not installed",
            hint=f'Install it with: pip install "watersmeet[{extra}]"',
        ) from cause
