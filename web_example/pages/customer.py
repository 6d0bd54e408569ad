"""Who asks: a random number in a cookie, given with the first thing that a customer does. Nobody can guess it, so it needs no signature and
no secret key; it outlives a restart, as the customer's rows do.
"""

import re
import secrets

from flask import redirect, request, url_for
from werkzeug.wrappers import Response

COOKIE = "shop_customer"
CUSTOMER = re.compile(r"[A-Za-z0-9_-]{22,64}")
YEAR = 365 * 86400


def customer() -> str:
    """Who asks; empty for one who never did anything here."""
    cookie = request.cookies.get(COOKIE, "")
    return cookie if CUSTOMER.fullmatch(cookie) else ""


def customer_or_new() -> str:
    """Who asks, with a new number for one who has none; `remember` it in the answer."""
    return customer() or secrets.token_urlsafe(24)


def remember(response: Response, who: str) -> Response:
    """The answer with the customer's cookie, so that the next request is theirs too."""
    response.set_cookie(COOKIE, who, max_age=YEAR, httponly=True, samesite="Lax", secure=request.is_secure)
    return response


def go(endpoint: str, who: str = "") -> Response:
    """On to that page after a POST; `who`: a customer to remember."""
    response = redirect(url_for(endpoint), code=303)
    return remember(response, who) if who else response
