"""Stars: five of them 48 hours after the ride, unless the customer was faster."""

from typing import Any

import pytest

from web_example.errors import TooLate
from web_example.scenarios.rides import GiveFiveStars, NoSuchRide, NoSuchStars

HOUR = 3600


def test_a_ride_that_nobody_rated_has_five_stars_after_48_hours(scene: Any) -> None:
    rides = scene.shop.rides()
    ride = rides.take("ada")
    scene.clock.advance(48 * HOUR - 1)
    assert rides.rides_of("ada")[0].stars is None
    scene.clock.advance(1)
    (rated,) = rides.rides_of("ada")
    assert (rated.stars, rated.by_customer) == (5, False)
    with pytest.raises(TooLate):
        rides.rate(ride.id, "ada", 1)


def test_who_rates_in_time_decides_and_the_job_never_runs(scene: Any) -> None:
    rides = scene.shop.rides()
    ride = rides.take("ada")
    scene.clock.advance(47 * HOUR)
    rides.rate(ride.id, "ada", 2)
    assert scene.waiting() == []
    scene.clock.advance(48 * HOUR)
    (rated,) = rides.rides_of("ada")
    assert (rated.stars, rated.by_customer) == (2, True)


def test_a_job_that_comes_after_the_rating_changes_nothing(scene: Any) -> None:
    rides = scene.shop.rides()
    ride = rides.take("ada")
    rides.rate(ride.id, "ada", 1)
    scene.timer.add_job(GiveFiveStars(ride.id), key="late")
    scene.clock.advance(0)
    assert scene.result("late") == "rated before"
    assert rides.rides_of("ada")[0].stars == 1


def test_only_one_to_five_stars_for_a_ride_of_ones_own_and_only_once(scene: Any) -> None:
    rides = scene.shop.rides()
    ride = rides.take("ada")
    for stars in (0, 6, -1):
        with pytest.raises(NoSuchStars):
            rides.rate(ride.id, "ada", stars)
    for number, customer in ((ride.id, "ben"), (ride.id, ""), (ride.id + 1, "ada")):
        with pytest.raises(NoSuchRide):
            rides.rate(number, customer, 1)
    assert scene.waiting() == [f"ride:{ride.id}"]
    rides.rate(ride.id, "ada", 3)
    with pytest.raises(TooLate, match="3 stars already"):
        rides.rate(ride.id, "ada", 4)
    assert rides.rides_of("ada")[0].stars == 3
