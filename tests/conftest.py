"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# what a try takes depends on what else the machine does
settings.register_profile("watersmeet", deadline=None)
settings.load_profile("watersmeet")
