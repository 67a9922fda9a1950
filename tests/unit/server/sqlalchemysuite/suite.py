"""The tests of SQLAlchemy's suite, for pytest in a process of its own."""

from sqlalchemy.testing.suite import *  # noqa: F403
