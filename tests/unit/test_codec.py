"""The stored form of a job's data: what comes back is what went in, and what would not is refused by the field's name."""

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from math import inf, nan
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from jobwheel import IJob
from jobwheel.codec import UnreadableData, decode, encode, storable
from jobwheel.errors import BadType, BadValue


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


@dataclass
class Seat:
    wagon: int
    place: str


@dataclass(frozen=True)
class Ticket:
    seats: list[Seat]
    price: Decimal
    sold: datetime


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Everything(IJob, kind="test_codec.everything"):
    text: str
    number: int
    real: float
    flag: bool
    nothing: None
    raw: bytes
    moment: datetime
    day: date
    hour: time
    span: timedelta
    uuid: UUID
    price: Decimal
    colour: Colour
    size: Size
    ticket: Ticket
    numbers: list[int]
    pair: tuple[int, str]
    many: tuple[int, ...]
    marks: set[str]
    table: dict[str, float]
    by_day: dict[date, int]
    maybe: int | None
    either: int | str

    def run(self) -> None: ...


@dataclass
class Simple(IJob, kind="test_codec.simple"):
    number: int
    note: str = "none"

    def run(self) -> None: ...


@dataclass
class Real(IJob, kind="test_codec.real"):
    value: float

    def run(self) -> None: ...


@dataclass
class Loose(IJob, kind="test_codec.loose"):
    value: Any

    def run(self) -> None: ...


@dataclass
class Nested(IJob, kind="test_codec.nested"):
    ticket: Ticket

    def run(self) -> None: ...


class Nothing(IJob, kind="test_codec.nothing"):
    def run(self) -> None: ...


class ByHand(IJob, kind="test_codec.by_hand"):
    def __init__(self, number: int) -> None:
        self.number = number

    def run(self) -> None: ...


def back(job: IJob) -> Any:
    return decode(job.jobwheel_kind, encode(job))


def ticket() -> Ticket:
    return Ticket([Seat(3, "12A"), Seat(3, "12B")], Decimal("19.90"), datetime(2026, 1, 3, 18, tzinfo=UTC))


def everything() -> Everything:
    return Everything(
        "Grüße, 世界 \" \\ \n \U0001f600", -(2**40), 0.1, True, None, b"\x00\xff", datetime(2026, 1, 3, 19, 0, 0, 123456, UTC),
        date(2024, 2, 29), time(23, 59, 59), timedelta(days=-1, seconds=5, microseconds=7), UUID(int=7), Decimal("1E-10"),
        Colour.BLUE, Size.SMALL, ticket(), [3, 1, 2], (1, "one"), (1, 2, 3), {"a", "b"}, {"x": 1.5}, {date(2026, 1, 1): 3}, None, "seven",
    )  # fmt: skip


def test_every_supported_type_comes_back_as_the_same_value() -> None:
    job = everything()
    storable(job)
    assert back(job) == job


def test_the_stored_form_is_json_of_the_fields() -> None:
    assert json.loads(encode(Simple(5))) == {"number": 5, "note": "none"}


def test_a_job_without_fields_is_stored_and_made_again() -> None:
    storable(Nothing())
    assert type(back(Nothing())) is Nothing


def test_a_moment_keeps_its_instant_whatever_its_zone() -> None:
    """R19: an offset is never dropped."""

    @dataclass
    class At(IJob, kind="test_codec.at"):
        moment: datetime

        def run(self) -> None: ...

    for zone in (UTC, timezone(timedelta(hours=1)), ZoneInfo("Europe/Berlin")):
        job = At(datetime(2026, 1, 3, 19, tzinfo=zone))
        storable(job)
        assert back(job).moment == job.moment


def test_a_naive_moment_stays_naive() -> None:
    @dataclass
    class Naive(IJob, kind="test_codec.naive"):
        moment: datetime

        def run(self) -> None: ...

    assert back(Naive(datetime(2026, 1, 3, 19))).moment == datetime(2026, 1, 3, 19)  # noqa: DTZ001 (what is tested)


def test_an_int_in_a_float_field_is_fine() -> None:
    storable(Real(3))
    assert back(Real(3)).value == 3.0


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    """A newer process may have written them, or an older one not yet."""
    assert decode(Simple.jobwheel_kind, b'{"number": 5, "invented_later": [1]}') == Simple(5)


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (b"{}", "number"),
        (b'{"number": "five"}', "number"),
        (b'{"number": 1.5}', "number"),
        (b"[]", "object"),
        (b"", ""),
        (b"{", ""),
        (b"\xff", ""),
    ],
)
def test_data_that_does_not_fit_is_unreadable_and_says_where(stored: bytes, named: str) -> None:
    with pytest.raises(UnreadableData, match=f"test_codec.simple: the stored data does not fit Simple.*{named}"):
        decode(Simple.jobwheel_kind, stored)


def test_nothing_but_the_kinds_own_class_is_ever_made() -> None:
    """R70: a stored name of a class is data."""
    job = decode(Loose.jobwheel_kind, b'{"value": {"__class__": "os.system", "args": ["true"]}}')
    assert job == Loose({"__class__": "os.system", "args": ["true"]})


@pytest.mark.parametrize("value", [threading.Lock(), lambda: None, object(), open, threading], ids=lambda value: type(value).__name__)
def test_a_live_object_is_refused_by_the_name_of_its_field(value: Any) -> None:
    """R69."""
    with pytest.raises(BadType, match=r"test_codec.loose.value cannot be stored.*ask for services"):
        storable(Loose(value))


@pytest.mark.parametrize(
    "value", [(1, 2), {1, 2}, b"raw", date(2026, 1, 1), Decimal("1.5"), UUID(int=1), timedelta(1), Colour.RED, Seat(1, "a")]
)
def test_a_value_that_would_come_back_as_another_type_is_refused(value: Any) -> None:
    """A field annotated `Any` gives JSON's own types back."""
    with pytest.raises(BadValue, match=r"test_codec.loose.value would not be read back as it is.*exact type"):
        storable(Loose(value))


@pytest.mark.parametrize("value", [None, True, 5, "text", [1, "a", None], {"a": [1]}, 1.5])
def test_plain_values_need_no_annotation(value: Any) -> None:
    storable(Loose(value))


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_numbers_that_json_has_not_are_refused(value: float) -> None:
    with pytest.raises((BadType, BadValue), match=r"test_codec.real"):
        storable(Real(value))


def test_a_value_of_another_type_than_the_annotation_is_refused() -> None:
    with pytest.raises((BadType, BadValue), match=r"test_codec.simple"):
        storable(Simple("seven"))  # type: ignore[arg-type]


class LoudText(str):
    __slots__ = ()


def test_a_subclass_that_would_be_lost_is_refused_by_the_path_to_it() -> None:
    job = Nested(Ticket([Seat(1, "a"), Seat(2, LoudText("b"))], Decimal(1), datetime.now(UTC)))
    with pytest.raises((BadType, BadValue), match=r"ticket.seats\[1\].place|test_codec.nested.ticket"):
        storable(job)


def test_a_dictionary_whose_keys_change_is_refused() -> None:
    with pytest.raises((BadType, BadValue), match=r"test_codec.loose.value"):
        storable(Loose({1: "a"}))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(BadType, match=r"test_codec.loose.value cannot be stored"):
        storable(Loose(value))


def test_an_integer_beyond_64_bits_comes_back_or_is_refused() -> None:
    with suppress(BadType, BadValue):
        storable(Simple(2**70))
        assert back(Simple(2**70)) == Simple(2**70)


def test_a_lone_surrogate_is_refused_and_not_an_error_of_the_encoder() -> None:
    with pytest.raises((BadType, BadValue), match=r"test_codec.loose"):
        storable(Loose("\ud800"))


def test_a_class_with_its_own_init_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadType, match="make it a dataclass"):
        storable(ByHand(5))


def test_a_field_that_init_does_not_take_comes_back_too() -> None:
    @dataclass
    class Derived(IJob, kind="test_codec.derived"):
        number: int
        double: int = field(init=False)

        def __post_init__(self) -> None:
            self.double = 2 * self.number

        def run(self) -> None: ...

    storable(Derived(4))
    assert back(Derived(4)) == Derived(4)


def test_a_post_init_that_refuses_the_stored_data_makes_it_unreadable() -> None:
    @dataclass
    class Strict(IJob, kind="test_codec.strict"):
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("negative")

        def run(self) -> None: ...

    with pytest.raises(UnreadableData, match="negative"):
        decode(Strict.jobwheel_kind, b'{"number": -1}')


def test_a_named_tuple_and_inherited_fields_come_back() -> None:
    @dataclass
    class Base(IJob, kind="test_codec.base"):
        number: int

        def run(self) -> None: ...

    @dataclass
    class Sub(Base, kind="test_codec.sub"):
        pair: Pair

    job = Sub(1, Pair(2, "three"))
    storable(job)
    assert back(job) == job


def test_a_slotted_and_frozen_job_comes_back() -> None:
    @dataclass(frozen=True, slots=True)
    class Frozen(IJob, kind="test_codec.frozen"):
        number: int

        def run(self) -> None: ...

    storable(Frozen(5))
    assert back(Frozen(5)) == Frozen(5)
