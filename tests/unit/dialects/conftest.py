"""The readers of the session's features, as a session has them."""

import watersmeet.session.handlers  # noqa: F401
