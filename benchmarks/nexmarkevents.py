"""Nexmark's events: each a function of its number alone, made by the thousand with numpy.

The benchmark's model (Nexmark, "A benchmark for queries over data streams"; proportions and hot keys as its later
implementations have them): of 50 events one is a person, three are auctions, 46 are bids. Sellers and bidders are
recent people, bids go to recent auctions, half of them or more to a few hot ones. The values are our own: they follow
the model's distributions, not the bits of another implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.datagen import mix
from watersmeet.values.types import BIGINT, TIMESTAMP, VARCHAR, SqlType

Numbers = npt.NDArray[np.int64]

KINDS: Final = ("person", "auction", "bid")
"""In the order of `event_type`."""
_TEXT = ("extra", VARCHAR)
COLUMNS: Final[dict[str, tuple[tuple[str, SqlType], ...]]] = {
    "person": (
        ("id", BIGINT),
        ("name", VARCHAR),
        ("email_address", VARCHAR),
        ("credit_card", VARCHAR),
        ("city", VARCHAR),
        ("state", VARCHAR),
        ("date_time", TIMESTAMP),
        _TEXT,
    ),
    "auction": (
        ("id", BIGINT),
        ("item_name", VARCHAR),
        ("description", VARCHAR),
        ("initial_bid", BIGINT),
        ("reserve", BIGINT),
        ("date_time", TIMESTAMP),
        ("expires", TIMESTAMP),
        ("seller", BIGINT),
        ("category", BIGINT),
        _TEXT,
    ),
    "bid": (
        ("auction", BIGINT),
        ("bidder", BIGINT),
        ("price", BIGINT),
        ("channel", VARCHAR),
        ("url", VARCHAR),
        ("date_time", TIMESTAMP),
        _TEXT,
    ),
}
_LEAD: Final = 10
"""References reach so many ids beyond the newest: they may come before what they refer to."""
_HOT: Final = 100
"""Hot ids change every so many."""
_FIRST_ID: Final = 1000
_FIRST_CATEGORY: Final = 10
_CHANNELS: Final = 10_000
_HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
_CITIES: Final = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_FIRST_NAMES: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")


@dataclass(frozen=True)
class Settings:
    """What an event follows beside its number.

    base_time: milliseconds, of event 0. first_event_rate: events a second of event time. Ratios: one in so many is
    not hot. seed: ours.
    """

    base_time: int = 1_436_918_400_000
    first_event_rate: int = 10_000
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    active_people: int = 1000
    in_flight_auctions: int = 100
    num_categories: int = 5
    hot_seller_ratio: int = 4
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_channel_ratio: int = 2
    seed: int = 0

    @staticmethod
    def numbers() -> Iterator[tuple[str, Any, int]]:
        """(name, default, least value) of each."""
        for field in fields(Settings):
            yield field.name, field.default, 0 if field.name in ("seed", "base_time", "bid_proportion") else 1

    @property
    def round(self) -> int:
        """After so many events their kinds come in the same order again."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    def proportion(self, kind: str) -> int:
        """Events of a kind in a round."""
        return (self.person_proportion, self.auction_proportion, self.bid_proportion)[KINDS.index(kind)]

    def first_place(self, kind: str) -> int:
        """Where in a round the events of a kind begin."""
        return (0, self.person_proportion, self.person_proportion + self.auction_proportion)[KINDS.index(kind)]

    def kinds(self, events: Numbers) -> Numbers:
        """Each event's kind, as a place in `KINDS`."""
        places = [self.first_place("auction"), self.first_place("bid")]
        return np.searchsorted(places, events % self.round, side="right")

    def count(self, kind: str, events: Any) -> Any:
        """How many of the first `events` events are of a kind. events: a number or an array."""
        least = np.minimum if isinstance(events, np.ndarray) else min
        most = np.maximum if isinstance(events, np.ndarray) else max
        inside = least(most(events % self.round - self.first_place(kind), 0), self.proportion(kind))
        return events // self.round * self.proportion(kind) + inside

    def times_us(self, events: Numbers) -> Numbers:
        """Event times, in whole milliseconds."""
        whole, rest = events // self.first_event_rate, events % self.first_event_rate
        times_ms: Numbers = self.base_time + whole * 1000 + rest * 1000 // self.first_event_rate
        return times_ms * 1000


def events_of(kind: str, events: Numbers, settings: Settings, names: Iterable[str] | None = None) -> pa.Table:
    """The events with the numbers `events`, all of one kind: their columns `names` (None: all) of `COLUMNS`."""
    types = dict(COLUMNS[kind])
    makers = {"person": _person, "auction": _auction, "bid": _bid}[kind](_Draw(events, settings), settings)
    chosen = list(types if names is None else names)
    made = [(makers[name](), types[name].arrow) for name in chosen]
    arrays = [pa.array(v).cast(k) if isinstance(v, np.ndarray) else v for v, k in made]
    return pa.Table.from_arrays(arrays, names=chosen)


class _Draw:
    """Random numbers and texts for events; a different `salt` gives different ones."""

    def __init__(self, events: Numbers, settings: Settings) -> None:
        self.events = events
        self._seed = settings.seed * 1000

    def bits(self, salt: int) -> npt.NDArray[np.uint64]:
        return mix(self.events, self._seed + salt)

    def below(self, most: int | Numbers, salt: int) -> Numbers:
        return (self.bits(salt) % np.asarray(most, np.uint64)).astype(np.int64)

    def price(self, salt: int) -> Numbers:
        """Cents: 1 to a million dollars, their logarithms evenly spread."""
        return np.round(10 ** ((self.bits(salt) >> np.uint64(11)) * 2.0**-53 * 6) * 100).astype(np.int64)

    def one_of(self, values: tuple[str, ...], salt: int) -> pa.Array:
        return pa.array(values).take(pa.array(self.below(len(values), salt)))

    def letters(self, least: int, most: int, salt: int) -> pa.Array:
        """Texts of least to most letters."""
        count, words = len(self.events), -(-most // 8)
        lengths = least + self.below(most - least + 1, salt)
        numbers = (self.events[:, None] * words + np.arange(words)).ravel()
        data = mix(numbers, self._seed + salt + 500).astype("<u8").view(np.uint8).reshape(count, words * 8)
        data = _LETTERS[data[np.arange(words * 8) < lengths[:, None]] % np.uint8(26)]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def padding(self, most: int, salt: int) -> pa.Array:
        """What makes events as long as the benchmark wants them."""
        return self.letters(most * 2 // 3, most, salt)


Makers = dict[str, Callable[[], Any]]


def _person(draw: _Draw, settings: Settings) -> Makers:
    return {
        "id": lambda: _FIRST_ID + settings.count("person", draw.events),
        "name": lambda: _names().take(pa.array(draw.below(len(_names()), 1))),
        "email_address": lambda: _joined(
            draw.letters(7, 7, 2), pa.scalar("@"), draw.letters(5, 5, 3), pa.scalar(".com"), pa.scalar("")
        ),
        "credit_card": lambda: _joined(
            *(_four_digits().take(pa.array(draw.below(10_000, 10 + i))) for i in range(4)), pa.scalar(" ")
        ),
        "city": lambda: draw.one_of(_CITIES, 4),
        "state": lambda: draw.one_of(_STATES, 5),
        "date_time": lambda: settings.times_us(draw.events),
        "extra": lambda: draw.padding(120, 6),
    }


def _auction(draw: _Draw, settings: Settings) -> Makers:
    def seller() -> Numbers:
        people = settings.count("person", draw.events)
        hot = draw.below(settings.hot_seller_ratio, 20) > 0
        return _FIRST_ID + np.where(hot, _hot(people), _recent(draw, people, settings.active_people, 21))

    def expires() -> Numbers:
        now = settings.times_us(draw.events)
        open_events = max(1, settings.in_flight_auctions * settings.round // settings.auction_proportion)
        horizon = np.maximum(settings.times_us(draw.events + open_events) - now, 1000) // 1000 * 2
        return now + (1 + draw.below(horizon, 23)) * 1000

    return {
        "id": lambda: _FIRST_ID + settings.count("auction", draw.events),
        "item_name": lambda: draw.letters(3, 20, 24),
        "description": lambda: draw.letters(10, 100, 25),
        "initial_bid": lambda: draw.price(22),
        "reserve": lambda: draw.price(22) + draw.price(26),
        "date_time": lambda: settings.times_us(draw.events),
        "expires": expires,
        "seller": seller,
        "category": lambda: _FIRST_CATEGORY + draw.below(settings.num_categories, 27),
        "extra": lambda: draw.padding(300, 28),
    }


def _bid(draw: _Draw, settings: Settings) -> Makers:
    def auction() -> Numbers:
        auctions = settings.count("auction", draw.events)
        hot = draw.below(settings.hot_auction_ratio, 40) > 0
        return _FIRST_ID + np.where(hot, _hot(auctions), _recent(draw, auctions, settings.in_flight_auctions, 41))

    def bidder() -> Numbers:
        people = settings.count("person", draw.events)
        hot = draw.below(settings.hot_bidder_ratio, 42) > 0
        return _FIRST_ID + np.where(hot, _hot(people) + 1, _recent(draw, people, settings.active_people, 43))

    def channel() -> pa.Array:
        hot = draw.below(settings.hot_channel_ratio, 44) > 0
        return pa.array(
            np.where(hot, draw.below(len(_HOT_CHANNELS), 45), len(_HOT_CHANNELS) + draw.below(_CHANNELS, 46))
        )

    return {
        "auction": auction,
        "bidder": bidder,
        "price": lambda: draw.price(47),
        "channel": lambda: _channels()[0].take(channel()),
        "url": lambda: _channels()[1].take(channel()),
        "date_time": lambda: settings.times_us(draw.events),
        "extra": lambda: draw.padding(70, 48),
    }


def _hot(known: Numbers) -> Numbers:
    return np.maximum(known - 1, 0) // _HOT * _HOT


def _recent(draw: _Draw, known: Numbers, active: int, salt: int) -> Numbers:
    """One of the newest `active` of `known` ids, or a little beyond."""
    first = np.maximum(known - active, 0)
    return first + draw.below(known - first + _LEAD, salt)


@cache
def _four_digits() -> pa.Array:
    return pa.array([f"{n:04d}" for n in range(10_000)])


def _joined(*parts: Any) -> pa.Array:
    """The parts of each row put together; the last part stands between them."""
    return pc.binary_join_element_wise(*parts)


@cache
def _names() -> pa.Array:
    return pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """(names, urls): the hot ones first. One url in ten has no channel_id."""
    count = len(_HOT_CHANNELS) + _CHANNELS
    parts = mix(np.arange(count, dtype=np.int64), 7)
    folders = [
        ["".join(chr(97 + b % 26) for b in int(bits).to_bytes(8, "little")[i : i + 3]) for i in (0, 2, 4)]
        for bits in parts.tolist()
    ]
    names = [*_HOT_CHANNELS, *(f"channel-{n}" for n in range(_CHANNELS))]
    urls = [
        f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1"
        + ("" if n < len(_HOT_CHANNELS) or n % 10 == 0 else f"&channel_id={int(bits) % (1 << 31)}")
        for n, ((a, b, c), bits) in enumerate(zip(folders, parts.tolist(), strict=True))
    ]
    return pa.array(names), pa.array(urls)
