"""The JSON form of all stored and sent dataclasses.

A dataclass becomes an object of its fields, without those that have their default; tuples and named tuples become
lists, of which earlier releases may have written fewer of the last fields that have a default. Other missing fields,
unknown and mistyped ones are errors. A class with its own `to_json` and `from_json` has that form.
`kinds` distinguishes the subclasses of a base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from cattrs import Converter
from cattrs.errors import CattrsError, StructureHandlerNotFoundError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.strategies import configure_union_passthrough

T = TypeVar("T")

_KIND: Final = "kind"
_PLAIN: Final = (str, int, float, bool)
#: The classes below each base.
_KINDS: Final[dict[type, Mapping[str, type]]] = {}
_CONVERTER: Final = Converter(omit_if_default=True, forbid_extra_keys=True, detailed_validation=False)
configure_union_passthrough(str | int | float | bool | None, _CONVERTER)


def to_json(value: Any) -> Any:
    """The JSON form of a value."""
    return _CONVERTER.unstructure(value)


def from_json(kind: type[T], value: Any) -> T:
    """The inverse of `to_json`. Raises ValueError if `value` is not the form of a `kind`."""
    try:
        return _CONVERTER.structure(value, kind)
    except StructureHandlerNotFoundError:
        raise  # a class without a JSON form
    except (AttributeError, CattrsError, KeyError, TypeError, ValueError) as cause:
        raise ValueError(f"not the JSON form of {kind.__name__}: {cause}") from cause


def prepare(*, read: Iterable[type] = (), written: Iterable[type] = ()) -> None:
    """Creates the readers and writers of classes and their parts in advance, because each takes a millisecond."""
    for cls in _parts(read):
        _CONVERTER.get_structure_hook(cls)
    for cls in _parts(written):
        _CONVERTER.get_unstructure_hook(cls)


def _parts(kinds_of_values: Iterable[Any]) -> list[Any]:
    """The types of all parts of some types."""
    found: dict[Any, None] = {}
    pending = list(kinds_of_values)
    while pending:
        kind = pending.pop()
        if kind in found or get_origin(kind) is Literal:
            continue
        has_fields = is_dataclass(kind) or _is_named_tuple(kind)
        if has_fields or get_origin(kind) not in (None, ClassVar):
            found[kind] = None
        pending += [*(get_type_hints(kind).values() if has_fields else ()), *get_args(kind)]
        pending += _KINDS.get(kind, {}).values()
    return list(found)


def kinds(base: type, classes: Mapping[str, type], *, by: str = _KIND) -> None:
    """Registers each of `classes` by its `kind`, so that values are read as a `base` or an intermediate class.

    classes: by the class variable `by`; classes may be added later.
    """
    _KINDS[base] = classes

    def is_one(cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, base) and classes.get(getattr(cls, by, "")) is cls

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
    required = len(wanted) - len(cls._field_defaults)

    def read(value: Any, _: Any) -> Any:
        if plain and list(map(type, value)) == wanted:  # the usual case, and much faster
            return cls(*value)
        # earlier releases had fewer of the last fields
        known = readers[: len(value)] if len(value) >= required else readers
        return cls(*[reader(part, kind) for (reader, kind), part in zip(known, value, strict=True)])

    return read


_CONVERTER.register_unstructure_hook_factory(_is_named_tuple, _named_tuple_writer)
_CONVERTER.register_structure_hook_factory(_is_named_tuple, _named_tuple_reader)


# cattrs has its own readers and writers of containers, but drops all caches with each new one.


def _is_mapping(cls: Any) -> bool:
    return cls is dict or get_origin(cls) in (dict, Mapping)


def _is_sequence(cls: Any) -> bool:
    return cls in (list, tuple) or get_origin(cls) in (list, tuple)


def _parts_of(cls: Any) -> Any:
    """The type of the values of a mapping or the elements of a sequence; Any if they are mixed or unknown."""
    arguments = {a for a in get_args(cls)[_is_mapping(cls) :] if a is not ...}
    return arguments.pop() if len(arguments) == 1 else Any


def _mapping_writer(cls: Any) -> Any:
    kind = _parts_of(cls)
    write = _CONVERTER.get_unstructure_hook(kind)
    return dict if kind in _PLAIN else lambda value: {key: write(part) for key, part in value.items()}


def _sequence_writer(cls: Any) -> Any:
    if get_args(cls) and all(a in (*_PLAIN, ...) for a in get_args(cls)):
        return list
    write = _CONVERTER.get_unstructure_hook(_parts_of(cls))
    return lambda value: [write(part) for part in value]


def _mapping_reader(cls: Any) -> Any:
    kind = _parts_of(cls)
    read = _CONVERTER.get_structure_hook(kind)
    return lambda value, _: {key: read(part, kind) for key, part in value.items()}


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple and ... in get_args(cls)


def _tuple_reader(cls: Any) -> Any:
    kind = _parts_of(cls)
    read = _CONVERTER.get_structure_hook(kind)
    if kind in _PLAIN:  # long ones, of values that need no conversion
        return lambda value, _: tuple(value if {*map(type, value)} == {kind} else [read(part, kind) for part in value])
    return lambda value, _: tuple([read(part, kind) for part in value])


_CONVERTER.register_unstructure_hook_factory(_is_mapping, _mapping_writer)
_CONVERTER.register_unstructure_hook_factory(_is_sequence, _sequence_writer)
_CONVERTER.register_structure_hook_factory(_is_mapping, _mapping_reader)
_CONVERTER.register_structure_hook_factory(_is_tuple, _tuple_reader)
