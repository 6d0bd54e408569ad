"""The shop's pages. Each view takes what it needs from the container by name, decides nothing about orders, and never shows a traceback."""

import logging
import re
import secrets
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, Response, redirect, render_template, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from jobwheel import State, TimerManager
from jobwheel.errors import JobwheelError
from web_example.errors import CannotHold, NoSuchDeparture, NoSuchOrder, NoSuchSeat, ShopError
from web_example.jobs import Rearming, release, reserve
from web_example.orders import OrderService
from web_example.safety import add_headers, refuse_foreign_posts

CUSTOMER_COOKIE = "shop_customer"
CUSTOMER = re.compile(r"[A-Za-z0-9_-]{22,64}")
YEAR = 365 * 86400
MINUTE = 60
SQLITE_MAX = 2**63 - 1

log = logging.getLogger(__name__)

shop = Blueprint("shop", __name__)
shop.before_app_request(refuse_foreign_posts)
shop.after_app_request(add_headers)


@shop.before_app_request
@inject
def rearm_first(
    timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"], rearming: Rearming = Provide["rearming"]
) -> None:
    """Reservations that a dying process left without a time limit have one before anything is shown.

    While the timer's file fails, nothing can be ordered. All else goes on: the rows decide, and paying needs no timer.
    """
    if request.endpoint == "static":
        return
    try:
        rearming.once(timer, orders)
    except JobwheelError as error:
        log.error("the unpaid orders could not be given their time limits: %s", error)
        if request.endpoint == "shop.order_seat":
            raise CannotHold from error


@shop.get("/")
@inject
def departures(orders: OrderService = Provide["orders"]) -> str:
    """The trains with their free seats."""
    return render_template("departures.html", listings=orders.departures())


@shop.get("/departures/<int:departure_id>")
@inject
def departure(departure_id: int, orders: OrderService = Provide["orders"]) -> str:
    """One train's seats, to choose one."""
    train, seats = orders.plan(_known(departure_id, NoSuchDeparture))
    free = sum(1 for _, is_free in seats if is_free)
    return render_template("departure.html", departure=train, seats=seats, free=free, pay_within=orders.pay_within)


@shop.post("/departures/<int:departure_id>/orders")
@inject
def order_seat(
    departure_id: int,
    timer: TimerManager = Provide["timer"],
    orders: OrderService = Provide["orders"],
    rearming: Rearming = Provide["rearming"],
) -> AnyResponse:
    """Orders the seat of the form's field `seat`, or any when it is empty, and sets the time limit of its payment."""
    customer = _customer() or secrets.token_urlsafe(24)
    reserve(timer, orders, rearming, _known(departure_id, NoSuchDeparture), customer, _seat_wish(request.form.get("seat", "")))
    response = redirect(url_for("shop.my_orders"), code=303)
    # A random number nobody can guess needs no signature and so no secret key; it outlives a restart, as the orders do.
    response.set_cookie(CUSTOMER_COOKIE, customer, max_age=YEAR, httponly=True, samesite="Lax", secure=request.is_secure)
    return response


@shop.get("/orders")
@inject
def my_orders(orders: OrderService = Provide["orders"]) -> str:
    """The customer's orders with their countdowns."""
    customer = _customer()
    mine = orders.orders_of(customer) if customer else []
    return render_template("orders.html", orders=mine, now=orders.now(), pay_within=orders.pay_within)


@shop.get("/orders.json")
@inject
def my_orders_now(orders: OrderService = Provide["orders"]) -> dict[str, Any]:
    """What the page of orders asks for while it is open: each order's state, and the server's clock in epoch seconds."""
    customer = _customer()
    mine = orders.orders_of(customer) if customer else []
    return {"now": orders.now(), "orders": [{"id": order.id, "state": order.state, "pay_by": order.pay_by} for order in mine]}


@shop.post("/orders/<int:order_id>/pay")
@inject
def pay(order_id: int, timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> AnyResponse:
    """Pays a reserved order; its job will never run."""
    orders.pay(_known(order_id, NoSuchOrder), _customer())
    release(timer, order_id)
    return redirect(url_for("shop.my_orders"), code=303)


@shop.post("/orders/<int:order_id>/cancel")
@inject
def cancel(order_id: int, timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> AnyResponse:
    """Cancels a reserved order; its seat is free again."""
    orders.cancel(_known(order_id, NoSuchOrder), _customer())
    release(timer, order_id)
    return redirect(url_for("shop.my_orders"), code=303)


@shop.get("/wheel")
@inject
def wheel(timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> str:
    """What waits in the timer. A real shop would show this to its own people only."""
    waiting = sorted(timer.find(state=State.SCHEDULED), key=lambda job: job.due)
    return render_template(
        "wheel.html", waiting=waiting, stats=timer.stats(), health=timer.health(), settings=timer.settings, now=orders.now()
    )


@shop.app_errorhandler(ShopError)
def refused(error: ShopError) -> tuple[str, int]:
    """The page that says what was refused and why."""
    return render_template("error.html", status=error.status, title=error.title, text=str(error)), error.status


@shop.app_errorhandler(HTTPException)
def http_error(error: HTTPException) -> tuple[str, int] | Response:
    """The same page for what Flask itself refuses, and, as 500, for a fault of ours (its traceback is in the log)."""
    if error.code is None or error.code < HTTPStatus.BAD_REQUEST:
        return error.get_response()  # type: ignore[return-value]
    ours = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    text = "Something went wrong on our side. It is in our log." if ours else error.description or ""
    return render_template("error.html", status=error.code, title=error.name, text=text), error.code


@shop.app_template_filter("money")
def money(cents: int) -> str:
    """1990 as "€ 19.90"."""
    return f"€\u202f{cents // 100}.{cents % 100:02d}"


@shop.app_template_filter("span")
def span(seconds: float) -> str:
    """A length of time in words: "20 seconds", "15 minutes"."""
    whole = round(seconds)
    number, unit = (whole // MINUTE, "minute") if whole >= MINUTE and whole % MINUTE == 0 else (whole, "second")
    return f"{number} {unit}{'' if number == 1 else 's'}"


@shop.app_template_filter("countdown")
def countdown(seconds: float) -> str:
    """75.2 as "1:16": the last shown second lasts until zero."""
    whole = max(0, -int(-seconds // 1))
    return f"{whole // MINUTE}:{whole % MINUTE:02d}"


@shop.app_template_filter("moment")
def moment(epoch: float) -> str:
    """Epoch seconds as the server's local time of day."""
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%H:%M:%S")


def _customer() -> str:
    """Who asks, by the cookie; empty for one who never ordered."""
    cookie = request.cookies.get(CUSTOMER_COOKIE, "")
    return cookie if CUSTOMER.fullmatch(cookie) else ""


def _known(number: int, otherwise: type[ShopError]) -> int:
    # The route lets any number of digits through; one that SQLite cannot hold names nothing.
    if number > SQLITE_MAX:
        raise otherwise
    return number


def _seat_wish(text: str) -> int | None:
    if text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < len(str(SQLITE_MAX))):
        raise NoSuchSeat
    return int(text)
