"""What all pages share: what every request must pass, the page for what is refused, and the words for numbers in templates."""

import logging
from datetime import UTC, datetime
from http import HTTPStatus

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, Response, render_template, request
from werkzeug.exceptions import HTTPException

from jobwheel.errors import JobwheelError
from web_example.errors import CannotHold, ClockFails, ShopError
from web_example.rearming import Rearming
from web_example.safety import add_headers, refuse_foreign_posts

MINUTE = 60
HOUR = 3600
UNITS = ((HOUR, "hour"), (MINUTE, "minute"), (1, "second"))

log = logging.getLogger(__name__)

pages = Blueprint("frame", __name__)
pages.before_app_request(refuse_foreign_posts)
pages.after_app_request(add_headers)


@pages.before_app_request
@inject
def rearm_first(rearming: Rearming = Provide["rearming"]) -> None:
    """What a dying process promised and set no job for has one before anything is shown.

    While the timer's file fails, nothing can be ordered. All else goes on: the rows decide, and paying needs no timer.
    """
    if request.endpoint == "static":
        return
    try:
        rearming.once()
    except JobwheelError as error:
        log.error("what was promised could not be given its jobs: %s", error)
        if request.endpoint == "tickets.order_seat":
            raise CannotHold from error


@pages.app_errorhandler(ShopError)
def refused(error: ShopError) -> tuple[str, int]:
    """The page that says what was refused and why."""
    return render_template("error.html", status=error.status, title=error.title, text=str(error)), error.status


@pages.app_errorhandler(JobwheelError)
@inject
def clock_fails(error: JobwheelError, rearming: Rearming = Provide["rearming"]) -> tuple[str, int]:
    """The same page when the timer's file fails. The customer's row may be there without its job, so the next request looks for it."""
    log.error("%s %s: the timer failed: %s", request.method, request.path, error)
    rearming.again()
    return refused(ClockFails())


@pages.app_errorhandler(HTTPException)
def http_error(error: HTTPException) -> tuple[str, int] | Response:
    """The same page for what Flask itself refuses, and, as 500, for a fault of ours (its traceback is in the log)."""
    if error.code is None or error.code < HTTPStatus.BAD_REQUEST:
        return error.get_response()  # type: ignore[return-value]
    ours = error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    text = "Something went wrong on our side. It is in our log." if ours else error.description or ""
    return render_template("error.html", status=error.code, title=error.name, text=text), error.code


@pages.app_template_filter("money")
def money(cents: int) -> str:
    """1990 as "€ 19.90"."""
    return f"€\u202f{cents // 100}.{cents % 100:02d}"


@pages.app_template_filter("span")
def span(seconds: float) -> str:
    """A length of time in words: "20 seconds", "15 minutes", "48 hours"."""
    whole = round(seconds)
    size, unit = next((unit for unit in UNITS if whole >= unit[0] and whole % unit[0] == 0), UNITS[-1])
    return f"{whole // size} {unit}{'' if whole == size else 's'}"


@pages.app_template_filter("countdown")
def countdown(seconds: float) -> str:
    """75.2 as "1:16": the last shown second lasts until zero. From an hour on "1:00:16"."""
    whole = max(0, -int(-seconds // 1))
    minutes = f"{whole // MINUTE}" if whole < HOUR else f"{whole // HOUR}:{whole % HOUR // MINUTE:02d}"
    return f"{minutes}:{whole % MINUTE:02d}"


@pages.app_template_filter("moment")
def moment(epoch: float) -> str:
    """Epoch seconds as the server's local time of day."""
    return datetime.fromtimestamp(epoch, UTC).astimezone().strftime("%H:%M:%S")
