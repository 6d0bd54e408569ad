"""The hourly counts as a small chart."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template

from jobwheel import preview
from web_example.pages.sources import lines_of
from web_example.scenarios import counting as scenario
from web_example.scenarios.counting import Counting

pages = Blueprint("counting", __name__)


@pages.get("/counts")
@inject
def chart(counting: Counting = Provide["counting"]) -> str:
    """The latest counts, and when the next ones will be made."""
    counts = counting.latest()
    return render_template(
        "counting.html", counts=counts, most=max([1, *(count.travellers for count in counts)]), trigger=counting.trigger,
        series=counting.series(), upcoming=preview(counting.trigger, 3), now=counting.now(),
        code=lines_of(scenario, "count_travellers", "Counting.register"),
    )  # fmt: skip
