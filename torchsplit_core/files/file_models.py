"""File models made of the frozen values: their annotations say what a file may hold.

A model has the fields of its value in the file's order, checks them strictly and gives the value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, FailFast, Field, Tag, create_model
from pydantic_core import PydanticCustomError

from torchsplit_core.values import quoted
from torchsplit_core.values.fields import AnyJson, FileField, Length, Range
from torchsplit_core.values.limits import NAME_FAULT, SMALLEST_POSITIVE, is_name

MOST_DEPTH = 32
"""Lists and objects inside of each other in a part of a file that may hold any JSON."""

OTHER_NAMES = {
    "SolverOptions": "Solver", "PlanStatistics": "Statistics", "GraphEdge": "Edge", "PartitionDevices": "Devices",
    "PartitionCandidate": "Candidate", "MaxLoadSearch": "Find", "MixDescription": "MixTold", "IntervalEnds": "Ends",
    "TrainingJob": "StrategyTraining",
}  # fmt: skip
"""Values that the schemas in docs/schemas call otherwise."""


class Strict(BaseModel):
    """No unknown keys, no coercion of text to numbers. What checks a model is built when first used, under a lock."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _FirstFault(FailFast):
    """FailFast that can stand in a union, whose members Python 3.11 hashes."""

    __hash__ = object.__hash__


# A list or table stops at its first fault: millions of faults would cost far more memory than the file.
_FIRST_FAULT = _FirstFault()


@dataclasses.dataclass(frozen=True, slots=True)
class ValueField:
    """A field of a value with its annotation, its default (... where a file must have it) and its form in files."""

    name: str
    annotation: Any
    default: Any
    form: FileField

    def key(self, earlier: bool) -> str:
        """Its key in files, `earlier`: in those of version 1 of a format that has a second one."""
        return (earlier and self.form.version_1_key) or self.form.key or self.name


@cache
def value_fields(kind: type) -> tuple[ValueField, ...]:
    """The fields of a value in the order of its file: a Literal of one word, the tag of a union, comes first."""
    hints = get_type_hints(kind, include_extras=True)
    tags = {name for name, hint in hints.items() if get_origin(hint) is Literal and len(get_args(hint)) == 1}
    ordered: dict[str, ValueField] = {}
    for field in dataclasses.fields(kind):
        annotation, default = hints[field.name], field.default
        forms = [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, FileField)]
        form = forms[0] if forms else FileField()
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if form.default is not None:
            (default,) = form.default
        elif form.required or field.name in tags or default is dataclasses.MISSING:
            default = ...
        ordered[field.name] = ValueField(field.name, annotation, default, form)
    names = sorted(ordered, key=lambda name: name not in tags)
    for name, described in ordered.items():
        if described.form.after is not None:
            names.remove(name)
            names.insert(names.index(described.form.after) + 1, name)
    return tuple(ordered[name] for name in names)


def to_data(value: Any, earlier: bool, complete: bool = False) -> Any:
    """A value as the plain data of its file, without added fields that have their default (`complete`: with them).

    Fields that the value's `left_out_of_files` names are left out too.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_data(item, earlier) for item in value]
    if isinstance(value, Mapping):
        return {key: to_data(item, earlier) for key, item in value.items()}
    data: dict[str, Any] = {}
    kind: Any = type(value)
    left_out = getattr(value, "left_out_of_files", ())
    for field in value_fields(kind):
        inner, form = getattr(value, field.name), field.form
        if field.name in left_out:
            continue
        if not form.added or complete or inner != field.default:
            is_null = form.null is not None and inner == form.null
            data[field.key(earlier)] = None if is_null else to_data(inner, earlier, form.complete)
    return data


@cache
def file_model(kind: type, earlier: bool = False, root: tuple[str, int] | None = None) -> type[BaseModel]:
    """The file model of a value; of a whole file where `root` is its format and version."""
    if earlier and root is None and not _has_earlier_key(kind):
        return file_model(kind)
    fields: dict[str, Any] = {}
    if root is not None:
        fields = {"format": (Literal[root[0]], ...), "version": (Literal[root[1]], ...)}
    for field in value_fields(kind):
        described = Field(field.default, alias=field.key(earlier))
        fields[field.name] = (checked_type(field.annotation, earlier), described)
    name = f"{OTHER_NAMES.get(kind.__name__, kind.__name__)}File{'1' if earlier else ''}"
    return create_model(name, __base__=Strict, **fields)


def file_type(kind: type, earlier: bool, root: tuple[str, int] | None = None) -> Any:
    """What pydantic checks for a value: its file model, from which the value is made."""

    def build(model: BaseModel) -> Any:
        fields = model.__dict__
        if root is not None:
            del fields["format"], fields["version"]
        return kind(**fields)

    return Annotated[file_model(kind, earlier, root), AfterValidator(build)]


def _has_earlier_key(kind: type) -> bool:
    return any(
        field.form.version_1_key or any(map(_has_earlier_key, values_in(field.annotation)))
        for field in value_fields(kind)
    )


def values_in(annotation: Any) -> Iterator[type]:
    """The dataclasses that an annotation names."""
    if _is_value(annotation):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for inner in get_args(annotation):
            yield from values_in(inner)


def _is_value(annotation: Any) -> bool:
    # A mark is a dataclass's instance.
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def checked_type(annotation: Any, earlier: bool = False, marks: tuple[Any, ...] = ()) -> Any:
    """The type that pydantic checks for an annotation of a value, within the limits of the marks."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return checked_type(inner[0], earlier, inner[1:])
    checked = annotation
    if _is_value(annotation):
        checked = file_type(annotation, earlier)
    elif origin is tuple and inner[-1] is ...:
        checked = Annotated[GenericAlias(list, checked_type(inner[0], earlier)), _FIRST_FAULT]
    elif origin is tuple:
        length = Length(min_length=len(inner), max_length=len(inner))
        checked = _limited(GenericAlias(list, checked_type(inner[0], earlier)), length)
    elif origin is Mapping:
        keys, items = (checked_type(part, earlier) for part in inner)
        if int in (inner[0], *get_args(inner[0])):
            keys = Annotated[keys, Field(strict=False)]
        checked = Annotated[GenericAlias(dict, (keys, items)), _FIRST_FAULT]
    elif origin in (Union, UnionType):
        values = [checked_type(part, earlier) for part in inner if _is_value(part)]
        others = [checked_type(part, earlier) for part in inner if not _is_value(part)]
        if len(values) > 1:
            values = [_union([part for part in inner if _is_value(part)], values)]
        if values and others and NoneType not in others:
            checked = _value_or_plain(values[0], reduce(or_, others))
        else:
            checked = reduce(or_, values + others)
    for mark in marks:
        checked = _limited(checked, mark)
    # Not pydantic's tuple: beside its first fault it complains of a least length.
    return Annotated[checked, AfterValidator(tuple)] if origin is tuple else checked


def _value_or_plain(value: Any, plain: Any) -> Any:
    """An object where a file has one, else something plain, so that a fault is of what the file has."""
    members = Annotated[value, Tag("value")] | Annotated[plain, Tag("plain")]
    return Annotated[members, Discriminator(lambda data: "value" if isinstance(data, Mapping) else "plain")]


def _union(kinds: list[type], checked: list[Any]) -> Any:
    """One of several values: by its field `kind`, or else the first that lacks none of its necessary fields.

    One of them may have no field `kind`: it is what has none in the file.
    """
    words = [_kind_word(kind) for kind in kinds]
    if None not in words:
        return Annotated[reduce(or_, checked), Field(discriminator="kind")]
    if words.count(None) < len(words):
        named = [Annotated[part, Tag(word or "")] for word, part in zip(words, checked, strict=True)]
        return Annotated[reduce(or_, named), Discriminator(_kind_of)]
    necessary = [{field.key(False) for field in value_fields(kind) if field.default is ...} for kind in kinds]

    def tag(data: Any) -> str:
        keys = set(data) if isinstance(data, Mapping) else set()
        return str(next((index for index, names in enumerate(necessary) if names <= keys), 0))

    members = [Annotated[part, Tag(str(index))] for index, part in enumerate(checked)]
    return Annotated[reduce(or_, members), Discriminator(tag)]


def _kind_word(kind: type) -> str | None:
    """The word that a value's field `kind` has in files; None without such a field."""
    return next((get_args(field.annotation)[0] for field in value_fields(kind) if field.name == "kind"), None)


def _kind_of(data: Any) -> str:
    return str(data.get("kind", "")) if isinstance(data, Mapping) else ""


def _limited(checked: Any, mark: Any) -> Any:
    """A type within the limits of one mark."""
    if isinstance(mark, (Range, Length)):
        limits: dict[str, Any] = {
            name: limit
            for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
            if (limit := getattr(mark, name, None)) is not None
        }
        if checked is float:
            limits["allow_inf_nan"] = False
        checked = Annotated[checked, Field(**limits)]
    if isinstance(mark, Range) and mark.not_tiny:
        return Annotated[checked, AfterValidator(_not_tiny)]
    if isinstance(mark, Length) and mark.is_name:
        return Annotated[checked, AfterValidator(_name)]
    if isinstance(mark, AnyJson):
        return Annotated[checked, AfterValidator(_check_free)]
    if isinstance(mark, FileField) and mark.null is not None:
        return Annotated[checked | None, AfterValidator(lambda text: mark.null if text is None else text)]
    return checked


def _name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("name", "{problem}", {"problem": f"is {quoted(text)}, which {NAME_FAULT}"})
    return text


def _not_tiny(number: float) -> float:
    if 0 < number < SMALLEST_POSITIVE:
        raise PydanticCustomError("tiny", "", {"ge": SMALLEST_POSITIVE})
    return number


def _check_free(value: dict[str, Any]) -> dict[str, Any]:
    """Any JSON, but finite and not deep: what reads it back recurses, and what writes it refuses infinity."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inside: list[Any] = []
        for container in level:
            for item in container.values() if isinstance(container, dict) else container:
                if isinstance(item, float) and not math.isfinite(item):
                    raise PydanticCustomError("not_finite", "holds a number that is not finite")
                if isinstance(item, (dict, list)):
                    inside.append(item)
        level = inside
    if level:
        raise PydanticCustomError("depth", f"is nested more than {MOST_DEPTH} levels deep")
    return value
