"""The first page: what can be seen here, each in a sentence."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template

from web_example.orders import OrderService
from web_example.scenarios.address import Addresses
from web_example.scenarios.presence import Presence
from web_example.scenarios.rides import Rides
from web_example.scenarios.rooms import Rooms

pages = Blueprint("start", __name__)


@pages.get("/")
@inject
def start(
    orders: OrderService = Provide["orders"],
    rooms: Rooms = Provide["rooms"],
    presence: Presence = Provide["presence"],
    rides: Rides = Provide["rides"],
    addresses: Addresses = Provide["addresses"],
) -> str:
    """The scenarios, with the times that hold here."""
    times = {
        "pay": orders.pay_within, "hold": rooms.hold, "offline": presence.offline_after, "stars": rides.stars_after,
        "change": addresses.change_after,
    }  # fmt: skip
    return render_template("start.html", times=times)
