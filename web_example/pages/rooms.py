"""The station's meeting rooms: book one, come in time."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template
from werkzeug.wrappers import Response

from web_example.pages.customer import customer, customer_or_new, go
from web_example.pages.numbers import known
from web_example.pages.sources import lines_of
from web_example.scenarios import rooms as scenario
from web_example.scenarios.rooms import ROOMS, NoSuchBooking, Rooms

pages = Blueprint("rooms", __name__)


@pages.get("/rooms")
@inject
def plan(rooms: Rooms = Provide["rooms"]) -> str:
    """Each room with who has it."""
    code = lines_of(scenario, "ReleaseRoom", "Rooms.book", "Rooms.arrive")
    return render_template("rooms.html", plan=rooms.plan(), chairs=ROOMS, customer=customer(), hold=rooms.hold, now=rooms.now(), code=code)


@pages.post("/rooms/<room>/bookings")
@inject
def book(room: str, rooms: Rooms = Provide["rooms"]) -> Response:
    """Books a free room."""
    who = customer_or_new()
    rooms.book(room, who)
    return go("rooms.plan", who)


@pages.post("/bookings/<int:booking_id>/arrive")
@inject
def arrive(booking_id: int, rooms: Rooms = Provide["rooms"]) -> Response:
    """The customer is in the room."""
    rooms.arrive(known(booking_id, NoSuchBooking), customer())
    return go("rooms.plan")


@pages.post("/bookings/<int:booking_id>/leave")
@inject
def leave(booking_id: int, rooms: Rooms = Provide["rooms"]) -> Response:
    """The room is free again."""
    rooms.leave(known(booking_id, NoSuchBooking), customer())
    return go("rooms.plan")
