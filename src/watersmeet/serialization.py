"""The JSON form of frozen dataclasses: one writer and one reader for all that is stored or sent.

A dataclass is an object of its fields, without those that have their default; tuples are lists, with names or without.
What is read is checked as far as types tell: a field that is missing, or that the class does not have, is an error. A
class with `to_json` and `from_json` of its own has that form, wherever it is a part of another.

`kinds` tells classes apart where only their base is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, get_type_hints

from cattrs import Converter
from cattrs.errors import CattrsError, StructureHandlerNotFoundError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.strategies import configure_union_passthrough

T = TypeVar("T")

_KIND: Final = "kind"
_PLAIN: Final = (str, int, float, bool)
_CONVERTER: Final = Converter(omit_if_default=True, forbid_extra_keys=True, detailed_validation=False)
configure_union_passthrough(str | int | float | bool | None, _CONVERTER)


def to_json(value: Any) -> Any:
    """A JSON value from which `from_json` makes an equal one."""
    return _CONVERTER.unstructure(value)


def from_json(kind: type[T], value: Any) -> T:
    """The inverse of `to_json`: a `kind`. ValueError if `value` is not the form of one."""
    try:
        return _CONVERTER.structure(value, kind)
    except StructureHandlerNotFoundError:
        raise  # a class that has no form at all
    except (AttributeError, CattrsError, KeyError, TypeError, ValueError) as cause:
        raise ValueError(f"not the JSON form of {kind.__name__}: {cause}") from cause


def kinds(base: type, classes: Mapping[str, type], *, by: str = _KIND) -> None:
    """Objects of `classes` carry their name as `kind`, by which they are read where a `base` is asked for.

    classes: may grow later; each has its name as class variable `by`. Where a class between `base` and these is asked
    for, only those below it are read.
    """

    def is_one(cls: Any) -> bool:
        return isinstance(cls, type) and classes.get(getattr(cls, by, "")) is cls

    def writer(cls: Any) -> Any:
        plain = make_dict_unstructure_fn(cls, _CONVERTER, _cattrs_omit_if_default=True)
        return lambda value: {_KIND: getattr(cls, by), **plain(value)}

    def reader(cls: Any) -> Any:
        plain = make_dict_structure_fn(
            cls, _CONVERTER, _cattrs_forbid_extra_keys=False, _cattrs_detailed_validation=False
        )
        known = {_KIND, *(f.name for f in fields(cls))}

        def read(value: Any, _: Any) -> Any:
            if not value.keys() <= known:
                raise ValueError(f"a {cls.__name__} has no {', '.join(sorted(value.keys() - known))}")
            return plain(value, cls)

        return read

    _CONVERTER.register_unstructure_hook_factory(is_one, writer)
    _CONVERTER.register_structure_hook_factory(is_one, reader)

    def is_base(cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, base) and not is_one(cls)

    def read(value: Any, asked: Any) -> Any:
        found = classes[value[_KIND]]
        if not issubclass(found, asked):
            raise TypeError(f"a {value[_KIND]} is no {asked.__name__}")
        return _CONVERTER.structure(value, found)

    _CONVERTER.register_unstructure_hook_func(is_base, _CONVERTER.unstructure)
    _CONVERTER.register_structure_hook_func(is_base, read)


def _has_own_form(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "to_json") and hasattr(cls, "from_json")


_CONVERTER.register_unstructure_hook_func(_has_own_form, lambda value: value.to_json())
_CONVERTER.register_structure_hook_func(_has_own_form, lambda value, cls: cls.from_json(value))


def _is_named_tuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields") and not _has_own_form(cls)


def _named_tuple_writer(cls: Any) -> Any:
    hints = get_type_hints(cls)
    if all(hints[name] in _PLAIN for name in cls._fields):
        return list
    writers = [_CONVERTER.get_unstructure_hook(hints[name]) for name in cls._fields]
    return lambda value: [write(part) for write, part in zip(writers, value, strict=True)]


def _named_tuple_reader(cls: Any) -> Any:
    hints = get_type_hints(cls)
    wanted = [hints[name] for name in cls._fields]
    readers = [(_CONVERTER.get_structure_hook(kind), kind) for kind in wanted]
    plain = all(kind in _PLAIN for kind in wanted)

    def read(value: Any, _: Any) -> Any:
        if plain and list(map(type, value)) == wanted:  # as it should be, and many times as fast
            return cls(*value)
        return cls(*[reader(part, kind) for (reader, kind), part in zip(readers, value, strict=True)])

    return read


_CONVERTER.register_unstructure_hook_factory(_is_named_tuple, _named_tuple_writer)
_CONVERTER.register_structure_hook_factory(_is_named_tuple, _named_tuple_reader)
