"""What the shop refuses, each with the HTTP status that fits and words for the customer. Raised by `orders` and the scenarios, which
add their own; shown by `pages`."""


class ShopError(Exception):
    """Base of every refusal. `status` is the HTTP status of the page, `title` its headline, the message its explanation."""

    status = 400
    title = "That did not work"


class NoSuchDeparture(ShopError):
    status = 404
    title = "No such departure"

    def __init__(self) -> None:
        super().__init__("This train is not in the timetable. Pick one from the departures.")


class NoSuchSeat(ShopError):
    status = 404
    title = "No such seat"

    def __init__(self) -> None:
        super().__init__("This train has no such seat. Pick one from its plan.")


class NoSuchOrder(ShopError):
    """Also the answer to someone else's order: a stranger is not told which numbers exist."""

    status = 404
    title = "No such order"

    def __init__(self) -> None:
        super().__init__("There is no order of yours with this number. Your orders are listed under My orders.")


class Departed(ShopError):
    status = 410
    title = "This train has left"

    def __init__(self) -> None:
        super().__init__("Seats are sold until the train leaves. Pick a later one.")


class SeatTaken(ShopError):
    status = 409
    title = "This seat is taken"

    def __init__(self, seat: str) -> None:
        super().__init__(f"Somebody was faster: seat {seat} is held or sold. Nothing was ordered; pick another one.")


class SoldOut(ShopError):
    status = 409
    title = "Sold out"

    def __init__(self) -> None:
        super().__init__("Every seat of this train is held or sold. Held seats come back when they are not paid in time: look again soon.")


class AlreadyPaid(ShopError):
    status = 409
    title = "Already paid"


class AlreadyCancelled(ShopError):
    status = 409
    title = "Already cancelled"


class Expired(ShopError):
    status = 410
    title = "Too late"


class CannotHold(ShopError):
    status = 503
    title = "We cannot hold seats right now"

    def __init__(self) -> None:
        super().__init__("Nothing was ordered and nothing was charged. Please try again in a minute.")


class ClockFails(ShopError):
    """The timer's file could not be read or written. What the shop's own database has stays, and gets its job as soon as it works again."""

    status = 503
    title = "Our clock does not answer"

    def __init__(self) -> None:
        super().__init__("What you entered before is kept, and its time limit follows by itself. Please look again in a minute.")


class TooLate(ShopError):
    status = 410
    title = "Too late"


class ForeignPage(ShopError):
    status = 403
    title = "Not from here"

    def __init__(self) -> None:
        super().__init__("The shop takes what is sent from its own pages only. Open the shop and try again.")
