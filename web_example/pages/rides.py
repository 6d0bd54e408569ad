"""The customer's rides and their stars."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template
from werkzeug.wrappers import Response

from web_example.pages.customer import customer, customer_or_new, go
from web_example.pages.numbers import field_number, known
from web_example.pages.sources import lines_of
from web_example.scenarios import rides as scenario
from web_example.scenarios.rides import STARS, NoSuchRide, NoSuchStars, Rides

pages = Blueprint("rides", __name__)


@pages.get("/rides")
@inject
def my_rides(rides: Rides = Provide["rides"]) -> str:
    """The rides, each with its stars or the time that is left to give them."""
    mine = rides.rides_of(customer()) if customer() else []
    code = lines_of(scenario, "GiveFiveStars", "Rides.take", "Rides.rate")
    return render_template("rides.html", rides=mine, stars=STARS, stars_after=rides.stars_after, now=rides.now(), code=code)


@pages.post("/rides")
@inject
def take(rides: Rides = Provide["rides"]) -> Response:
    """A ride, which is over at once: no train leaves here."""
    who = customer_or_new()
    rides.take(who)
    return go("rides.my_rides", who)


@pages.post("/rides/<int:ride_id>/stars")
@inject
def rate(ride_id: int, rides: Rides = Provide["rides"]) -> Response:
    """The stars of the form's field `stars`."""
    rides.rate(known(ride_id, NoSuchRide), customer(), field_number("stars", NoSuchStars))
    return go("rides.my_rides")
