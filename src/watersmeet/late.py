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
from types import ModuleType
from typing import Any


def late(name: str) -> ModuleType:
    """The module `name`, which is imported at the first look at an attribute of it, at once if it is there already."""
    return sys.modules.get(name) or _Late(name)


class _Late(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value
