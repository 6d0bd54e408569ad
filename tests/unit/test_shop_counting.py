"""The hourly count: on the hour by the clocks of Berlin, once for each moment, registered as often as one likes."""

from datetime import UTC, datetime
from typing import Any

from web_example.scenarios.counting import KEY, count_travellers

HOUR = 3600


def test_travellers_are_counted_on_every_full_hour(scene: Any) -> None:
    counting, presence = scene.shop.counting(), scene.shop.presence()
    counting.register()
    scene.clock.advance(HOUR - 10)
    presence.sign("ada", "")
    scene.clock.advance(2 * HOUR)
    counts = counting.latest()
    assert [count.travellers for count in counts] == [1, 0]
    assert [count.at % HOUR for count in counts] == [0, 0]
    assert counts[1].at - counts[0].at == HOUR


def test_registering_at_each_start_leaves_one_job_with_the_same_next_moment(scene: Any) -> None:
    counting = scene.shop.counting()
    counting.register()
    scene.clock.advance(HOUR / 2)
    before = counting.series()
    for _ in range(3):
        counting.register()
        assert scene.shop.rearming().rearm() == 1
    assert scene.waiting() == [KEY]
    after = counting.series()
    assert (after.id, after.due) == (before.id, before.due)
    assert before.due.timestamp() % HOUR == 0


def test_a_moment_is_counted_once_though_its_job_is_repeated(scene: Any) -> None:
    counting, noon = scene.shop.counting(), datetime(2026, 5, 1, 12, tzinfo=UTC)
    counting.count(noon)
    scene.shop.presence().sign("ada", "")
    counting.count(noon)
    assert [(count.at, count.travellers) for count in counting.latest()] == [(noon.timestamp(), 0)]


def test_after_a_day_without_the_shop_one_count_makes_up_for_all(scene: Any) -> None:
    counting = scene.shop.counting()
    counting.register()
    scene.clock.suspend(24 * HOUR + 60)
    assert len(counting.latest()) == 1
    scene.clock.advance(HOUR)
    assert len(counting.latest()) == 2


def test_the_job_is_one_of_the_decorator(scene: Any) -> None:
    job = scene.timer.add_job(count_travellers())
    assert job.kind == "stats.count_travellers"
    scene.clock.advance(0)
    assert len(scene.shop.counting().latest()) == 1
