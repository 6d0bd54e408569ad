"""Where selling meets the timer: the job that ends an unpaid order, how it is set with the order, and which orders need one.

Called by the pages and at start. jobwheel imports this module because the configuration lists it under `jobs`.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from jobwheel import IJob, JobContext, Retry, TimerManager
from jobwheel.errors import JobwheelError
from web_example.errors import CannotHold
from web_example.models import Order
from web_example.orders import OrderService
from web_example.rearming import Rearming

log = logging.getLogger(__name__)


@dataclass
class CancelUnpaidOrder(IJob, kind="orders.cancel_unpaid", retry=Retry(attempts=5, backoff=2.0, cap=300), timeout=30):
    """Gives the seat back when the time to pay is over; does nothing to an order that was paid or cancelled before."""

    order_id: int

    def run(self, ctx: JobContext, *, orders: OrderService) -> str:
        # The row decides, not the timer: a payment at this very moment either wins here or is refused there.
        if orders.cancel_if_unpaid(self.order_id):
            ctx.log(f"order {self.order_id} was not paid in time; its seat is free again")
            return "expired"
        return "had ended"


def timer_key(order_id: int) -> str:
    """The key under which an order's job waits."""
    return f"order:{order_id}"


def reserve(
    timer: TimerManager, orders: OrderService, rearming: Rearming, departure_id: int, customer: str, seat_id: int | None = None
) -> Order:
    """A new order with its time limit. Raises what `OrderService.reserve` raises, or CannotHold; then no seat is held.

    The limit is set in the order's transaction: an order that is not committed gets none, and one that is has it a moment later. If
    the timer's file fails in that moment, the order is taken back.
    """
    made: list[Order] = []

    def limit(session: Session, order: Order) -> None:
        made.append(order)
        timer.add_job(CancelUnpaidOrder(order.id), timedelta(seconds=orders.pay_within), key=timer_key(order.id), after_commit=session)

    try:
        return orders.reserve(departure_id, customer, seat_id, limit)
    except JobwheelError as error:
        log.error("an order could not be given its time limit, so it is taken back: %s", error)
        rearming.again()  # in case taking back fails as well
        for order in made:
            orders.take_back(order.id)
        raise CannotHold from error


def promises(orders: OrderService) -> Iterator[Mapping[str, Any]]:
    """For `Rearming`: each reserved order's job, due when the rest of its time is over."""
    now = orders.now()
    for order in orders.reserved():
        left = min(max(0.0, order.pay_by - now), orders.pay_within)  # the wall clock may have been set back since
        yield {"job": CancelUnpaidOrder(order.id), "delay": left, "key": timer_key(order.id)}
