"""Imports that wait until a module is first used, so that a command starts without what it does not need.

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
from typing import Any


def lazy_import(name: str) -> ModuleType:
    """The module `name`. It is imported when one of its attributes is first read, unless it is imported already."""
    return sys.modules.get(name) or _Lazy(name)


def block_import(name: str) -> None:
    """Makes later imports of `name` fail as if it were not installed, unless it is imported already.

    A None in sys.modules is not enough: compiled modules take it for the module itself.
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
