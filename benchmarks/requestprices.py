"""What requests to S3 cost, computed from counted requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Dollars for a million requests, by the list prices of S3 Standard in us-east in 2026. DELETE is free.
PRICES: Final = {"PUT": 5.0, "POST": 5.0, "LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "DELETE": 0.0}
SECONDS_A_MONTH: Final = 30 * 24 * 3600


def monthly_dollars(requests: Mapping[str, float]) -> float:
    """The price of a month in dollars. requests: how many there are in a second, by kind.

    KeyError for a kind that has no price.
    """
    return sum(PRICES[kind] * number for kind, number in requests.items()) * SECONDS_A_MONTH / 1e6
