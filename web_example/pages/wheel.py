"""What waits in the timer, of all scenarios. A real shop would show this to its own people only."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template

from jobwheel import State, TimerManager
from web_example.orders import OrderService

pages = Blueprint("wheel", __name__)


@pages.get("/wheel")
@inject
def wheel(timer: TimerManager = Provide["timer"], orders: OrderService = Provide["orders"]) -> str:
    """The next hundred jobs, and how the timer is."""
    waiting = sorted(timer.find(state=State.SCHEDULED), key=lambda job: job.due)
    return render_template(
        "wheel.html", waiting=waiting, stats=timer.stats(), health=timer.health(), settings=timer.settings, now=orders.now()
    )
