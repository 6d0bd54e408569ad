"""Where the customer's tickets are sent, and the change that waits."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template, request
from werkzeug.wrappers import Response

from web_example.pages.customer import customer, customer_or_new, go
from web_example.pages.sources import lines_of
from web_example.scenarios import address as scenario
from web_example.scenarios.address import Addresses

pages = Blueprint("address", __name__)


@pages.get("/address")
@inject
def mailbox(addresses: Addresses = Provide["addresses"]) -> str:
    """The address in force, and the one to come."""
    code = lines_of(scenario, "ApplyAddress", "Addresses.ask", "Addresses.withdraw")
    return render_template(
        "address.html", mailbox=addresses.of(customer()), change_after=addresses.change_after, now=addresses.now(), code=code
    )


@pages.post("/address")
@inject
def ask(addresses: Addresses = Provide["addresses"]) -> Response:
    """Asks for the address in the form's field `address`."""
    who = customer_or_new()
    addresses.ask(who, request.form.get("address", "").strip())
    return go("address.mailbox", who)


@pages.post("/address/withdraw")
@inject
def withdraw(addresses: Addresses = Provide["addresses"]) -> Response:
    """Takes the change back."""
    addresses.withdraw(customer())
    return go("address.mailbox")
