"""Libraries that are imported at their first use: those of extras, and slow ones that a command may not need.

```python
if TYPE_CHECKING:
    from watersmeet import planner
else:
    planner = lazy_import("watersmeet.planner")
```
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, Final

from watersmeet.errors import error

#: By library: the extra that installs it, and the name of its distribution.
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
    """A module of an optional library. LIBRARY_MISSING, with the command that installs it.

    user: the feature that needs it, in the plural, for the message.
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


def lazy_import(name: str) -> ModuleType:
    """The module `name`, imported when one of its attributes is first read."""
    return sys.modules.get(name) or _Lazy(name)


def block_import(name: str) -> None:
    """Makes later imports of `name` fail as if it were not installed.

    A None in sys.modules is not enough: compiled modules use it as the module.
    """
    sys.meta_path.insert(0, _Missing(name))


class _Missing(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


class _Lazy(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value
