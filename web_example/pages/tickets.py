"""The pages of selling: departures, one train's seats, and the customer's orders."""

from typing import Any

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template, request
from werkzeug.wrappers import Response

from jobwheel import TimerManager
from web_example import jobs
from web_example.errors import NoSuchDeparture, NoSuchOrder, NoSuchSeat
from web_example.jobs import reserve, timer_key
from web_example.orders import OrderService
from web_example.pages.customer import customer, customer_or_new, go
from web_example.pages.numbers import field_number, known
from web_example.pages.sources import lines_of
from web_example.rearming import Rearming, release

pages = Blueprint("tickets", __name__)


@pages.get("/departures")
@inject
def departures(orders: OrderService = Provide["orders"]) -> str:
    """The trains with their free seats."""
    return render_template("departures.html", listings=orders.departures())


@pages.get("/departures/<int:departure_id>")
@inject
def departure(departure_id: int, orders: OrderService = Provide["orders"]) -> str:
    """One train's seats, to choose one."""
    train, seats = orders.plan(known(departure_id, NoSuchDeparture))
    free = sum(1 for _, is_free in seats if is_free)
    return render_template("departure.html", departure=train, seats=seats, free=free, pay_within=orders.pay_within)


@pages.post("/departures/<int:departure_id>/orders")
@inject
def order_seat(
    departure_id: int,
    timer: TimerManager = Provide["timer"],
    orders: OrderService = Provide["orders"],
    rearming: Rearming = Provide["rearming"],
) -> Response:
    """Orders the seat of the form's field `seat`, or any when it is empty, and sets the time limit of its payment."""
    who = customer_or_new()
    seat = field_number("seat", NoSuchSeat) if request.form.get("seat") else None
    reserve(timer, orders, rearming, known(departure_id, NoSuchDeparture), who, seat)
    return go("tickets.my_orders", who)


@pages.get("/orders")
@inject
def my_orders(orders: OrderService = Provide["orders"]) -> str:
    """The customer's orders with their countdowns."""
    mine = orders.orders_of(customer()) if customer() else []
    code = lines_of(jobs, "CancelUnpaidOrder", "reserve")
    return render_template("orders.html", orders=mine, now=orders.now(), pay_within=orders.pay_within, code=code)


@pages.get("/orders.json")
@inject
def my_orders_now(orders: OrderService = Provide["orders"]) -> dict[str, Any]:
    """What the page of orders asks for while it is open: each order's state, and the server's clock in epoch seconds."""
    mine = orders.orders_of(customer()) if customer() else []
    return {"now": orders.now(), "orders": [{"id": order.id, "state": order.state, "pay_by": order.pay_by} for order in mine]}


@pages.post("/orders/<int:order_id>/pay")
@inject
def pay(order_id: int, timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> Response:
    """Pays a reserved order; its job will never run."""
    orders.pay(known(order_id, NoSuchOrder), customer())
    release(timer, timer_key(order_id))
    return go("tickets.my_orders")


@pages.post("/orders/<int:order_id>/cancel")
@inject
def cancel(order_id: int, timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> Response:
    """Cancels a reserved order; its seat is free again."""
    orders.cancel(known(order_id, NoSuchOrder), customer())
    release(timer, timer_key(order_id))
    return go("tickets.my_orders")
