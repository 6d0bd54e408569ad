"""Who is online, and the sign of life that every open page of the shop sends."""

import re
from typing import Any

from dependency_injector.wiring import Provide, inject
from flask import Blueprint, jsonify, render_template, request
from werkzeug.wrappers import Response

from web_example.pages.customer import customer, customer_or_new, go, remember
from web_example.pages.sources import lines_of
from web_example.scenarios import presence as scenario
from web_example.scenarios.presence import Presence

VISIT = re.compile(r"[A-Za-z0-9_-]{1,64}")
SIGNS = 3
"""So many signs fit into the time after which a traveller counts as gone: one that gets lost does no harm."""

pages = Blueprint("presence", __name__)


@pages.app_context_processor
@inject
def sign_every(presence: Presence = Provide["presence"]) -> dict[str, Any]:
    """For the frame of every page: seconds between two signs."""
    return {"sign_every": presence.offline_after / SIGNS}


@pages.get("/presence")
@inject
def travellers(presence: Presence = Provide["presence"]) -> str:
    """Who is here, and who went last."""
    who = customer()
    return render_template(
        "presence.html", online=presence.online(who), gone=presence.gone(who), now=presence.now(),
        offline_after=presence.offline_after, code=lines_of(scenario, "MarkOffline", "Presence.sign"),
    )  # fmt: skip


@pages.post("/presence/sign")
@inject
def sign(presence: Presence = Provide["presence"]) -> Response:
    """A sign of the visit in the form's field; scripts are told the visit to name next time, others are shown the page."""
    who, visit = customer_or_new(), request.form.get("visit", "")
    visit = presence.sign(who, visit if VISIT.fullmatch(visit) else "")
    if "application/json" not in request.headers.get("Accept", ""):
        return go("presence.travellers", who)
    answer = jsonify(visit=visit)
    return answer if customer() else remember(answer, who)
