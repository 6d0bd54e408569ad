"""A booked room: released when nobody came in time, kept when somebody did, whoever asks and whatever comes at the same moment."""

from typing import Any

import pytest

from web_example.errors import TooLate
from web_example.scenarios.rooms import BookingState, NoSuchBooking, NoSuchRoom, ReleaseRoom, RoomTaken

TEN_MINUTES = 600


def state(scene: Any, room: str = "Lake") -> BookingState | None:
    booking = scene.shop.rooms().plan()[room]
    return None if booking is None else booking.state


def test_a_room_to_which_nobody_came_is_free_after_ten_minutes(scene: Any) -> None:
    booking = scene.shop.rooms().book("Lake", "ada")
    scene.clock.advance(TEN_MINUTES - 1)
    assert state(scene) is BookingState.BOOKED
    scene.clock.advance(1)
    assert state(scene) is None
    assert scene.result(f"room:{booking.id}") == "released"
    assert scene.shop.rooms().book("Lake", "ben").id != booking.id


def test_who_is_there_keeps_the_room_and_the_job_never_runs(scene: Any) -> None:
    rooms = scene.shop.rooms()
    booking = rooms.book("Lake", "ada")
    rooms.arrive(booking.id, "ada")
    assert scene.waiting() == []
    rooms.arrive(booking.id, "ada")  # a second click
    scene.clock.advance(10 * TEN_MINUTES)
    assert state(scene) is BookingState.USED
    rooms.leave(booking.id, "ada")
    assert state(scene) is None


def test_a_room_that_is_given_back_is_free_at_once(scene: Any) -> None:
    rooms = scene.shop.rooms()
    booking = rooms.book("Lake", "ada")
    rooms.leave(booking.id, "ada")
    assert state(scene) is None
    assert scene.waiting() == []


def test_the_row_decides_and_not_the_job(scene: Any) -> None:
    rooms = scene.shop.rooms()
    booking = rooms.book("Lake", "ada")
    rooms.arrive(booking.id, "ada")
    scene.timer.add_job(ReleaseRoom(booking.id), key="a job that should not be")
    scene.clock.advance(0)
    assert state(scene) is BookingState.USED
    assert scene.result("a job that should not be") == "somebody came, or gave it back"


def test_who_comes_too_late_is_told_so(scene: Any) -> None:
    rooms = scene.shop.rooms()
    booking = rooms.book("Lake", "ada")
    scene.clock.advance(TEN_MINUTES)
    for late in (rooms.arrive, rooms.leave):
        with pytest.raises(TooLate):
            late(booking.id, "ada")


def test_a_room_is_booked_once_and_only_its_customer_moves_the_booking(scene: Any) -> None:
    rooms = scene.shop.rooms()
    booking = rooms.book("Lake", "ada")
    with pytest.raises(RoomTaken):
        rooms.book("Lake", "ben")
    with pytest.raises(NoSuchRoom):
        rooms.book("Cellar", "ben")
    for number, customer in ((booking.id, "ben"), (booking.id, ""), (booking.id + 1, "ada")):
        for move in (rooms.arrive, rooms.leave):
            with pytest.raises(NoSuchBooking):
                move(number, customer)
    assert scene.waiting() == [f"room:{booking.id}"]
    assert state(scene) is BookingState.BOOKED
