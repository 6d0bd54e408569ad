"""Numbers as they come out of addresses and forms: anything may stand there, and what cannot be meant is refused by the given error."""

from flask import request

from web_example.errors import ShopError

SQLITE_MAX = 2**63 - 1


def known(number: int, otherwise: type[ShopError]) -> int:
    """A number of a row. Raises `otherwise` if SQLite cannot hold it: the route lets any number of digits through."""
    if number > SQLITE_MAX:
        raise otherwise
    return number


def field_number(name: str, otherwise: type[ShopError]) -> int:
    """The whole number in a field of the form. Raises `otherwise` if there is none."""
    text = request.form.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < len(str(SQLITE_MAX))):
        raise otherwise
    return int(text)
