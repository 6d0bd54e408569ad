"""A changed address: in force after an hour, the last wish alone, and not at all when it is withdrawn."""

from typing import Any

import pytest

from web_example.scenarios.address import FIRST, NoAddress

HOUR = 3600


def in_force(scene: Any, customer: str = "ada") -> str:
    return scene.shop.addresses().of(customer).address


def test_a_new_address_takes_force_after_an_hour(scene: Any) -> None:
    addresses = scene.shop.addresses()
    addresses.ask("ada", "ada@new.example")
    scene.clock.advance(HOUR - 1)
    assert (in_force(scene), addresses.of("ada").wish) == (FIRST, "ada@new.example")
    scene.clock.advance(1)
    assert (in_force(scene), addresses.of("ada").wish) == ("ada@new.example", None)
    assert in_force(scene, "ben") == FIRST


def test_asking_again_replaces_the_job_and_counts_the_hour_anew(scene: Any) -> None:
    addresses = scene.shop.addresses()
    addresses.ask("ada", "first@new.example")
    scene.clock.advance(HOUR / 2)
    addresses.ask("ada", "second@new.example")
    assert len(scene.waiting()) == 1
    scene.clock.advance(HOUR - 1)
    assert in_force(scene) == FIRST
    scene.clock.advance(1)
    assert in_force(scene) == "second@new.example"


def test_what_is_withdrawn_does_not_take_force(scene: Any) -> None:
    addresses = scene.shop.addresses()
    addresses.withdraw("ada")  # nothing to withdraw
    addresses.ask("ada", "ada@new.example")
    addresses.withdraw("ada")
    assert scene.waiting() == []
    scene.clock.advance(2 * HOUR)
    assert in_force(scene) == FIRST


def test_a_job_that_wakes_before_the_time_of_the_latest_wish_sleeps_on(scene: Any) -> None:
    """As when the customer asked again at the very moment when the job of the first wish had begun, or two requests crossed."""
    addresses = scene.shop.addresses()
    addresses.ask("ada", "ada@new.example")
    (job,) = scene.timer.find(state="scheduled")
    assert scene.timer.run_now(job)
    scene.clock.advance(HOUR - 1)
    assert in_force(scene) == FIRST
    scene.clock.advance(1)
    assert in_force(scene) == "ada@new.example"


def test_a_step_of_the_wall_clock_moves_row_and_job_alike(scene: Any) -> None:
    scene.shop.addresses().ask("ada", "ada@new.example")
    scene.clock.set_wall(-HOUR)
    scene.clock.advance(2 * HOUR - 1)
    assert in_force(scene) == FIRST
    scene.clock.advance(1)
    assert in_force(scene) == "ada@new.example"


@pytest.mark.parametrize("address", ["", "ada", "ada@", "@example.org", "a b@example.org", "ada@example.org\n", "a@b@c", "a@" + "b" * 200])
def test_what_is_no_address_is_refused_and_nothing_waits(scene: Any, address: str) -> None:
    with pytest.raises(NoAddress):
        scene.shop.addresses().ask("ada", address)
    assert scene.waiting() == []
