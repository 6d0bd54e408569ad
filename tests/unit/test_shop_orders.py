"""The shop's rules of selling, without a timer: who may move an order, and that a seat is sold once, whoever comes at the same moment."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from web_example.database import Database
from web_example.errors import (
    AlreadyCancelled,
    AlreadyPaid,
    Departed,
    Expired,
    NoSuchDeparture,
    NoSuchOrder,
    NoSuchSeat,
    SeatTaken,
    ShopError,
    SoldOut,
)
from web_example.models import OrderState
from web_example.orders import OrderService

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC).timestamp()


class Moment:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.seconds = NOON

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def moment() -> Moment:
    return Moment()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "shop.db")
    yield database
    database.close()


@pytest.fixture
def orders(database: Database, moment: Moment) -> OrderService:
    return OrderService(database, pay_within=20, now=moment)


def train(orders: OrderService, name: str = "QC 11") -> int:
    return next(line.departure.id for line in orders.departures() if line.departure.train == name)


def free(orders: OrderService, departure_id: int) -> int:
    return next(line.free for line in orders.departures() if line.departure.id == departure_id)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What the calls gave or raised, each in a thread of its own, all let go at the same moment."""
    barrier = threading.Barrier(len(calls))
    outcomes: list[object] = [None] * len(calls)

    def one(place: int, call: Callable[[], object]) -> None:
        barrier.wait(10)
        try:
            outcomes[place] = call()
        except ShopError as error:
            outcomes[place] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def test_a_reserved_seat_is_not_free_and_an_ended_order_gives_it_back(orders: OrderService) -> None:
    departure = train(orders)
    total = free(orders, departure)
    first, second, third = (orders.reserve(departure, "ada") for _ in range(3))
    assert free(orders, departure) == total - 3
    assert len({first.seat_id, second.seat_id, third.seat_id}) == 3

    orders.pay(first.id, "ada")
    orders.cancel(second.id, "ada")
    assert orders.cancel_if_unpaid(third.id)
    assert free(orders, departure) == total - 1
    assert {order.id: order.state for order in orders.orders_of("ada")} == {
        first.id: OrderState.PAID, second.id: OrderState.CANCELLED, third.id: OrderState.EXPIRED,
    }  # fmt: skip


def test_the_plan_shows_which_seats_are_taken(orders: OrderService) -> None:
    departure = train(orders)
    order = orders.reserve(departure, "ada")
    _, seats = orders.plan(departure)
    assert [seat.id for seat, is_free in seats if not is_free] == [order.seat_id]
    assert [seat.name for seat, _ in seats][:5] == ["1A", "1B", "1C", "1D", "2A"]


def test_an_order_keeps_its_price_and_must_be_paid_within_the_time(orders: OrderService, moment: Moment) -> None:
    order = orders.reserve(train(orders), "ada")
    assert (order.price, order.made_at, order.pay_by) == (2990, moment.seconds, moment.seconds + 20)


def test_the_row_and_not_the_clock_says_whether_an_order_can_be_paid(orders: OrderService, moment: Moment) -> None:
    order = orders.reserve(train(orders), "ada")
    moment.seconds += 3600  # the timer is late, or the wall clock was set: nobody else may have the seat yet
    orders.pay(order.id, "ada")
    assert not orders.cancel_if_unpaid(order.id)


def test_a_payment_after_expiry_is_refused_as_too_late(orders: OrderService) -> None:
    order = orders.reserve(train(orders), "ada")
    orders.cancel_if_unpaid(order.id)
    with pytest.raises(Expired) as refusal:
        orders.pay(order.id, "ada")
    assert refusal.value.status == 410
    assert "nothing was charged" in str(refusal.value)
    with pytest.raises(Expired):
        orders.cancel(order.id, "ada")


def test_a_second_payment_is_refused_and_the_order_stays_paid(orders: OrderService) -> None:
    order = orders.reserve(train(orders), "ada")
    orders.pay(order.id, "ada")
    for again in (orders.pay, orders.cancel):
        with pytest.raises(AlreadyPaid) as refusal:
            again(order.id, "ada")
        assert refusal.value.status == 409
    assert not orders.cancel_if_unpaid(order.id)
    assert not orders.take_back(order.id)
    assert orders.orders_of("ada")[0].state is OrderState.PAID


def test_a_cancelled_order_can_be_neither_paid_nor_cancelled(orders: OrderService) -> None:
    order = orders.reserve(train(orders), "ada")
    orders.cancel(order.id, "ada")
    for again in (orders.pay, orders.cancel):
        with pytest.raises(AlreadyCancelled):
            again(order.id, "ada")


def test_an_order_of_someone_else_is_as_unknown_as_one_that_never_was(orders: OrderService) -> None:
    order = orders.reserve(train(orders), "ada")
    for call in (orders.pay, orders.cancel):
        for number, customer in ((order.id, "eve"), (order.id, ""), (order.id + 1, "ada")):
            with pytest.raises(NoSuchOrder):
                call(number, customer)
    assert not orders.cancel_if_unpaid(order.id + 1)
    assert [each.state for each in orders.reserved()] == [OrderState.RESERVED]
    assert orders.orders_of("eve") == []


def test_what_is_not_in_the_timetable_cannot_be_ordered(orders: OrderService, moment: Moment) -> None:
    here, there = train(orders, "QC 11"), train(orders, "QC 24")
    foreign_seat = orders.plan(there)[1][0][0].id
    with pytest.raises(NoSuchDeparture):
        orders.reserve(10**6, "ada")
    with pytest.raises(NoSuchDeparture):
        orders.plan(10**6)
    for seat in (foreign_seat, 10**6):
        with pytest.raises(NoSuchSeat):
            orders.reserve(here, "ada", seat)
    moment.seconds += 7 * 86400
    with pytest.raises(Departed):
        orders.reserve(here, "ada")
    assert orders.orders_of("ada") == []


def test_a_train_without_free_seats_is_sold_out(orders: OrderService) -> None:
    departure = train(orders, "QC 99")
    taken = [orders.reserve(departure, "ada") for _ in range(4)]
    with pytest.raises(SoldOut):
        orders.reserve(departure, "bob")
    with pytest.raises(SeatTaken, match="1C"):
        orders.reserve(departure, "bob", taken[2].seat_id)
    orders.cancel(taken[2].id, "ada")
    assert orders.reserve(departure, "bob").seat_id == taken[2].seat_id


def test_the_timetable_is_written_anew_when_all_trains_have_left(orders: OrderService, moment: Moment) -> None:
    before = [line.departure.leaves_at for line in orders.departures()]
    assert [line.departure.id for line in orders.departures()] == [line.departure.id for line in orders.departures()]
    moment.seconds += 30 * 86400
    after = [line.departure.leaves_at for line in orders.departures()]
    assert len(after) == len(before)
    assert min(after) > datetime.fromtimestamp(moment.seconds, UTC).astimezone().replace(tzinfo=None)


def test_a_time_to_pay_of_nothing_is_refused(database: Database) -> None:
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="pay_within"):
            OrderService(database, pay_within=seconds)


def test_the_last_seat_is_sold_once_to_eight_customers_at_once(orders: OrderService) -> None:
    departure = train(orders, "QC 99")
    seats = [orders.reserve(departure, "ada") for _ in range(4)]
    for wish in (None, seats[3].seat_id):
        orders.take_back(max(order.id for order in orders.reserved()))
        outcomes = at_once(*[partial(orders.reserve, departure, f"customer {n}", wish) for n in range(8)])
        refusals = [outcome for outcome in outcomes if isinstance(outcome, SoldOut | SeatTaken)]
        assert len(refusals) == 7
        assert free(orders, departure) == 0
        assert len(orders.reserved()) == 4


def test_of_payment_cancel_and_expiry_at_one_moment_exactly_one_wins(orders: OrderService) -> None:
    departure = train(orders)
    total = free(orders, departure)
    winners = {OrderState.PAID: 0, OrderState.CANCELLED: 0, OrderState.EXPIRED: 0}
    for _ in range(20):
        number = orders.reserve(departure, "ada").id
        paid, cancelled, expired = at_once(
            partial(orders.pay, number, "ada"), partial(orders.cancel, number, "ada"), partial(orders.cancel_if_unpaid, number)
        )
        claims = {OrderState.PAID: paid is None, OrderState.CANCELLED: cancelled is None, OrderState.EXPIRED: expired is True}
        won = [state for state, claimed in claims.items() if claimed]
        assert won == [orders.orders_of("ada")[0].state]
        winners[won[0]] += 1
    assert free(orders, departure) == total - winners[OrderState.PAID]


def test_of_two_payments_at_one_moment_one_is_charged(orders: OrderService) -> None:
    number = orders.reserve(train(orders), "ada").id
    outcomes = at_once(*[partial(orders.pay, number, "ada")] * 8)
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, AlreadyPaid) for outcome in outcomes) == 7


def test_a_failed_block_leaves_nothing_behind(database: Database, orders: OrderService) -> None:
    number = orders.reserve(train(orders), "ada").id

    def pay_and_die() -> None:
        with database.writing() as session:
            orders._end(session, number, OrderState.PAID)
            raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError):
        pay_and_die()
    assert [order.id for order in orders.reserved()] == [number]


def test_a_second_opening_of_the_file_sees_the_same_orders(tmp_path: Path, orders: OrderService, moment: Moment) -> None:
    number = orders.reserve(train(orders), "ada").id
    opened = at_once(*[lambda: Database(tmp_path / "shop.db")] * 4)
    for database in opened:
        assert isinstance(database, Database)
        assert [order.id for order in OrderService(database, 20, moment).reserved()] == [number]
        database.close()


def test_eight_threads_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    opened = at_once(*[lambda: Database(tmp_path / "deep" / "new.db")] * 8)
    for database in opened:
        assert isinstance(database, Database)
        database.close()
