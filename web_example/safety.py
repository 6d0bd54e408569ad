"""What every request must pass and every answer carries: where a POST may come from, what a page may load. Used by `views`."""

from flask import Response, request

from web_example.errors import ForeignPage

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    # Not no-referrer: under that, a form posts with "Origin: null" and could not be told from a foreign one.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def refuse_foreign_posts() -> None:
    """Raises ForeignPage when a request that changes something was not sent by a page of this shop.

    Browsers say so in Sec-Fetch-Site, but only to https and to localhost; elsewhere the Origin's host must be the one that was asked.
    """
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if site == "same-origin" or (site is None and origin is not None and origin.partition("://")[2] == request.host):
        return
    raise ForeignPage


def add_headers(response: Response) -> Response:
    """The answer with the headers above; pages and JSON are never taken from a cache, since seats come and go."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    return response
