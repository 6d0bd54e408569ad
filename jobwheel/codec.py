"""The only door between a job and its stored form: msgspec JSON of the dataclass fields. No pickle, no names to import.

Encodes: the dataclass fields of a job, in them str, int, float, bool, None, bytes, datetime, date, time, timedelta, UUID, Decimal, Enum,
nested dataclasses, list, tuple, set, dict. `storable` tells at the caller's line what could not be read back.
"""

import dataclasses
import math
import re
from functools import lru_cache
from typing import Any

import msgspec

from jobwheel.errors import BadType, BadValue
from jobwheel.job import IJob
from jobwheel.kind import Kind
from jobwheel.trigger import Trigger, find_trigger

_PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types whose values are the same if they are equal."""


class UnreadableData(BadValue):
    """Stored data that the kind's class cannot be made from."""


def encode(job: IJob, sort: bool = False) -> bytes:
    """The stored form of a job's data. `sort`: the same in every process for equal data, also of sets.

    Raises:
        BadType: a field holds something that has no stored form; the message names the field.
    """
    fields = _fields(type(job))
    values = {name: getattr(job, name) for name in fields}
    try:
        return msgspec.json.encode(values, order="deterministic" if sort else None)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        for name, value in values.items():
            _encode_field(job, name, value)
        raise


def decode(kind: Kind, stored: bytes | str) -> IJob:
    """A job of this kind from its stored form. Unknown fields are ignored: a newer process may have written them.

    Raises:
        UnreadableData: the data does not fit the class; the message names the field.
    """
    try:
        return _read(kind, stored)
    except UnreadableData:
        raise
    except Exception as error:  # the class's own __post_init__ may raise anything
        raise UnreadableData(
            f"{kind.name}: no {kind.job_class.__qualname__} can be made from the stored data: {type(error).__name__}: {error}"
        ) from error


def _read(kind: Kind, stored: bytes | str) -> IJob:
    try:
        job: IJob = _decoder(kind.job_class).decode(stored)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise UnreadableData(f"{kind.name}: the stored data does not fit {kind.job_class.__qualname__}: {error}") from error
    return job


def storable(job: IJob, recurs: bool = False) -> bytes:
    """The stored form of a job's data, made sure that it is read back as the same value. `recurs`: it will be compared, see `encode`.

    Raises:
        BadType, BadValue: it cannot; the message names the field.
    """
    kind = job.jobwheel_kind
    try:
        stored = encode(job)
        back = _read(kind, stored)
    except UnreadableData as error:
        raise BadType(f"{kind.name} cannot be stored: {error}; make the value fit the field's type") from error
    except (NameError, AttributeError) as error:  # of an annotation in text
        raise BadType(
            f"{kind.name} cannot be stored: the annotation of a field cannot be resolved ({error}): import its type where the class is "
            f"defined, and not under TYPE_CHECKING alone"
        ) from error
    if recurs:  # the form that every process comes to, also from an int in a field for a float
        stored = encode(back, sort=True)
    for name in _fields(type(job)):
        before, after = getattr(job, name), getattr(back, name)
        if type(before) is type(after) and type(before) in _PLAIN and before == after:
            continue
        path = _difference(before, after, name)
        if path is not None:
            raise BadValue(
                f"{kind.name}.{path} would not be read back as it is ({_at(job, path)!r:.80}): "
                f"annotate the field with its exact type, and use no subclasses and no NaN"
            )
    return stored


class StoredTrigger(msgspec.Struct, frozen=True):
    """A trigger as it is stored: its kind's name and its fields."""

    kind: str
    fields: msgspec.Raw


def encode_trigger(trigger: Trigger) -> StoredTrigger:
    """The stored form of a trigger."""
    names = _fields(type(trigger))
    return StoredTrigger(
        trigger.trigger_kind, msgspec.Raw(msgspec.json.encode({name: getattr(trigger, name) for name in names}, order="deterministic"))
    )


def decode_trigger(stored: StoredTrigger) -> Trigger:
    """The trigger of that stored form. Raises `UnreadableData` if no code here can make it."""
    cls = find_trigger(stored.kind)
    if cls is None:
        raise UnreadableData(f"its trigger is of the kind {stored.kind!r}, which no code here knows: import the class that has it")
    try:
        return msgspec.json.decode(stored.fields, type=cls)
    except Exception as error:  # the class's own __post_init__ may raise anything
        raise UnreadableData(f"no {cls.__qualname__} can be made from what is stored of its trigger: {error}") from error


def storable_trigger(trigger: Any) -> None:
    """Raises BadType or BadValue unless `trigger` can be stored and is read back as the same value."""
    if not callable(getattr(trigger, "next_due", None)) or isinstance(trigger, type):
        return  # no trigger at all, which is told better elsewhere
    name = type(trigger).__qualname__
    if not isinstance(trigger, Trigger) or not dataclasses.is_dataclass(trigger):
        raise BadType(f"trigger={trigger!r:.80} cannot be stored: make {name} a frozen dataclass and a subclass of jobwheel.Trigger")
    try:
        back = decode_trigger(encode_trigger(trigger))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadType(f"trigger={trigger!r:.80} cannot be stored: {error}; its fields may be of the types that a job's may be") from error
    if back != trigger:
        raise BadValue(f"trigger={trigger!r:.80} would be read back as {back!r:.80}: annotate its fields with their exact types")


@lru_cache(maxsize=1024)
def _fields(cls: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if "__init__" in vars(cls) or any("__init__" in vars(base) for base in cls.__mro__[:-1]):
        raise BadType(f"{cls.__qualname__} has an __init__ of its own, so its data is unknown: make it a dataclass to store its jobs")
    return ()


@lru_cache(maxsize=1024)
def _decoder(cls: type[IJob]) -> Any:
    return msgspec.json.Decoder(cls) if dataclasses.is_dataclass(cls) else _Empty(cls)


class _Empty:
    """Reads the data of a class that has none."""

    def __init__(self, cls: type[IJob]) -> None:
        self._cls = cls

    def decode(self, stored: bytes) -> IJob:
        msgspec.json.decode(stored, type=dict[str, Any])
        return self._cls()


def _encode_field(job: IJob, name: str, value: Any) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadType(
            f"{job.jobwheel_kind.name}.{name} cannot be stored: {error}. Keep plain data in the job, and let run(*, name) ask for services"
        ) from error


def _difference(before: Any, after: Any, path: str) -> str | None:
    """The path of the first value that changed, compared by value and exact type; an int read back as a float is the same."""
    if isinstance(before, int | float) and isinstance(after, float) and not isinstance(before, bool):
        return None if before == after and not math.isnan(after) else path
    if type(before) is not type(after):
        return path
    if dataclasses.is_dataclass(before):
        names = (field.name for field in dataclasses.fields(before))
        return _first(_difference(getattr(before, name), getattr(after, name), f"{path}.{name}") for name in names)
    if isinstance(before, list | tuple):
        if len(before) != len(after):
            return path
        return _first(_difference(one, other, f"{path}[{index}]") for index, (one, other) in enumerate(zip(before, after, strict=True)))
    if isinstance(before, dict):
        if before.keys() != after.keys():
            return path
        return _first(_difference(before[key], after[key], f"{path}[{key!r}]") for key in before)
    return None if before == after else path


def _first(paths: Any) -> str | None:
    return next((path for path in paths if path is not None), None)


def _at(job: IJob, path: str) -> Any:
    return getattr(job, re.split(r"[.\[]", path, maxsplit=1)[0])
