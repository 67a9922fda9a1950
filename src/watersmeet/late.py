"""Modules that are imported when they are first used: what a start does not need must not cost it time.

```python
if TYPE_CHECKING:
    from watersmeet import planner
else:
    planner = late("watersmeet.planner")
```
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


def late(name: str) -> ModuleType:
    """The module `name`, which is imported at the first look at an attribute of it, at once if it is there already."""
    return sys.modules.get(name) or _Late(name)


def never(name: str) -> None:
    """As if the module `name` were not installed, unless it is there already.

    A None in sys.modules is not enough: compiled modules take that for the module.
    """
    sys.meta_path.insert(0, _Missing(name))


class _Missing(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


class _Late(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value
