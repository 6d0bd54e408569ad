"""What a crash lost between the shop's file and the timer's: every promise gets its job again, and those that have one keep it."""

from typing import Any

import pytest

from jobwheel.errors import StoreError
from web_example.scenarios.mailing import SLICE

KINDS = {
    "orders.cancel_unpaid", "rooms.release", "presence.mark_offline", "rides.give_five_stars", "address.apply",
    "stats.count_travellers", "mail.send_slice", "mail.send_urgent",
}  # fmt: skip


def promise_all(scene: Any) -> None:
    """One promise of each kind, without the timer's knowledge: as if the process had died after each row."""
    scene.timer.pause_all()
    shop = scene.shop
    shop.orders().reserve(shop.orders().departures()[0].departure.id, "ada")
    shop.rooms().book("Lake", "ada")
    shop.presence().sign("ada", "")
    shop.rides().take("ada")
    shop.addresses().ask("ada", "ada@new.example")
    shop.mailing().write("ada", "The timetable", SLICE)
    shop.mailing().write_urgent("ada", "Another platform")
    scene.timer.cancel_all()
    assert scene.waiting() == []


def test_every_promise_gets_its_job_for_the_rest_of_its_time(scene: Any) -> None:
    promise_all(scene)
    start = scene.clock.wall()
    scene.clock.advance(20)
    scene.shop.rearming().once()
    jobs = scene.timer.find(state="scheduled")
    assert {job.kind for job in jobs} == KINDS
    left = {job.kind: round(job.due.timestamp() - start) for job in jobs}
    assert left["orders.cancel_unpaid"] == 900
    assert left["rooms.release"] == 600
    assert left["presence.mark_offline"] == 20 + 30
    assert left["rides.give_five_stars"] == 48 * 3600
    assert left["address.apply"] == 3600


def test_rearming_again_changes_nothing(scene: Any) -> None:
    promise_all(scene)
    rearming = scene.shop.rearming()
    found = rearming.rearm()
    before = [(job.id, job.key, job.due) for job in scene.timer.find(state="scheduled")]
    assert len(before) == found == len(KINDS)
    scene.clock.advance(5)
    rearming.once()
    rearming.again()
    rearming.once()
    assert [(job.id, job.key, job.due) for job in scene.timer.find(state="scheduled")] == before


def test_what_could_not_be_armed_is_armed_by_the_next_request(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    promise_all(scene)
    rearming = scene.shop.rearming()

    def fails(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(scene.timer, "add_jobs", fails)
        with pytest.raises(StoreError):
            rearming.once()
    assert scene.waiting() == []
    rearming.once()
    assert len(scene.waiting()) == len(KINDS)


def test_what_is_over_is_promised_no_more(scene: Any) -> None:
    shop = scene.shop
    booking = shop.rooms().book("Lake", "ada")
    shop.rooms().arrive(booking.id, "ada")
    ride = shop.rides().take("ada")
    shop.rides().rate(ride.id, "ada", 4)
    shop.addresses().ask("ada", "ada@new.example")
    shop.addresses().withdraw("ada")
    shop.presence().sign("ada", "")
    scene.clock.advance(30)
    assert shop.rearming().rearm() == 1  # the hourly count, which is never over
