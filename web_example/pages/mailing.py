"""Messages to many, and urgent mails that overtake them."""

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, render_template, request
from werkzeug.wrappers import Response

from jobwheel import State
from web_example.pages.customer import customer, customer_or_new, go
from web_example.pages.numbers import field_number, known
from web_example.pages.sources import lines_of
from web_example.scenarios import mailing as scenario
from web_example.scenarios.mailing import MOST, Mailing, NoRecipients, NoSuchMessage

LINES = 6

pages = Blueprint("mailing", __name__)


@pages.get("/messages")
@inject
def messages(mailing: Mailing = Provide["mailing"]) -> str:
    """The customer's latest message on its way, the log of its jobs, and the urgent mails beside it."""
    who = customer()
    latest = next(iter(mailing.standings(who, urgent=False, limit=1)), None)
    jobs = mailing.jobs_of(latest.message.id) if latest else []
    ended = [job for job in jobs if job.state is not State.RUNNING]
    return render_template(
        "mailing.html", latest=latest, urgent=mailing.standings(who, urgent=True, limit=1), most=MOST,
        running=[job for job in jobs if job.state is State.RUNNING and job.progress],
        failed=sum(job.state is State.FAILED for job in ended),
        log=[line for job in ended for line in job.log][-LINES:],
        code=lines_of(scenario, "SendSlice", "SendUrgent", "Mailing.write", "Mailing.write_urgent"),
    )  # fmt: skip


@pages.post("/messages")
@inject
def write(mailing: Mailing = Provide["mailing"]) -> Response:
    """Sends the form's `subject` to as many `recipients`."""
    who = customer_or_new()
    mailing.write(who, request.form.get("subject", ""), field_number("recipients", NoRecipients))
    return go("mailing.messages", who)


@pages.post("/messages/urgent")
@inject
def write_urgent(mailing: Mailing = Provide["mailing"]) -> Response:
    """Sends one mail that does not wait behind the others."""
    who = customer_or_new()
    mailing.write_urgent(who, "Your train leaves from another platform")
    return go("mailing.messages", who)


@pages.post("/messages/<int:message_id>/stop")
@inject
def stop(message_id: int, mailing: Mailing = Provide["mailing"]) -> Response:
    """Sends no more of a message."""
    mailing.stop(known(message_id, NoSuchMessage), customer())
    return go("mailing.messages")
