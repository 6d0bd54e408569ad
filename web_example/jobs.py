"""Where the shop meets the timer: the job that ends an unpaid order, how it is set with the order, and how it is taken away.

The order is in the shop's database and the job in jobwheel's file. They are written one after the other, the order first; a process that
dies just between the two leaves an order without a job, and `Rearming` finds it at the next start of any process.

Called by the views and at start; jobwheel imports this module because the configuration lists it under `jobs`.
"""

import logging
import os
import threading
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from jobwheel import IJob, JobContext, Retry, TimerManager
from jobwheel.errors import JobwheelError
from web_example.errors import CannotHold
from web_example.models import Order
from web_example.orders import OrderService

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
    timer: TimerManager, orders: OrderService, rearming: "Rearming", departure_id: int, customer: str, seat_id: int | None = None
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


def release(timer: TimerManager, order_id: int) -> None:
    """Takes the time limit of an ended order away. A failure is only logged: the job would find the order ended and do nothing."""
    try:
        timer.cancel(timer_key(order_id))
    except JobwheelError as error:
        log.warning("the job of order %d could not be cancelled; it will find the order ended: %s", order_id, error)


def rearm(timer: TimerManager, orders: OrderService) -> int:
    """Gives every reserved order that has no job one for the rest of its time. Returns how many reserved orders there were.

    Harmless at any moment and in any number of processes. An order whose time passed while nobody was there expires at once.
    Raises a JobwheelError if the timer's file fails; then nothing was changed.
    """
    reserved = orders.reserved()
    now = orders.now()
    timer.add_jobs(
        {
            "job": CancelUnpaidOrder(order.id),
            "delay": min(max(0.0, order.pay_by - now), orders.pay_within),  # the wall clock may have been set back since
            "key": timer_key(order.id),
            "if_exists": "keep",
        }
        for order in reserved
    )
    return len(reserved)


class Rearming:
    """Does `rearm` once in each process that serves the shop, before its first request is answered, and again when asked to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while rearming, so that no request gets past before it is done."""
        self._asked = 0
        """How often `again` was called, by any thread; that two at once may count as one does no harm."""
        self._done = (0, 0)
        """The process and the count that it was done for; written under the lock."""

    def once(self, timer: TimerManager, orders: OrderService) -> None:
        """Returns when every reserved order has its job. Raises as `rearm` does, and then the next call tries again."""
        if self._done == self._wish():
            return
        with self._lock:
            wish = self._wish()
            if self._done != wish:
                found = rearm(timer, orders)
                self._done = wish
                if found:
                    log.info("%d unpaid orders found; each has its time limit", found)

    def again(self) -> None:
        """Lets the next request do it once more."""
        self._asked += 1

    def _wish(self) -> tuple[int, int]:
        # The process counts: with the memory store a forked child starts with an empty timer and must do it anew.
        return os.getpid(), self._asked
