"""Who is online: signs put the end of a visit off, and it comes thirty seconds after the last one."""

from typing import Any

from sqlalchemy import event

from web_example.scenarios.presence import MarkOffline, name_of


def online(scene: Any, me: str = "") -> list[str]:
    return [traveller.name for traveller in scene.shop.presence().online(me)]


def test_a_traveller_is_gone_thirty_seconds_after_the_last_sign(scene: Any) -> None:
    presence = scene.shop.presence()
    visit = presence.sign("ada", "")
    for _ in range(20):
        scene.clock.advance(10)
        assert presence.sign("ada", visit) == visit
    scene.clock.advance(29)
    assert online(scene) == [name_of("ada")]
    scene.clock.advance(1)
    assert online(scene) == []
    (gone,) = presence.gone("ada")
    assert (gone.name, gone.me, gone.left - gone.since) == (name_of("ada"), True, 230)


def test_a_sign_of_an_open_visit_reads_and_writes_no_row(scene: Any) -> None:
    presence = scene.shop.presence()
    visit = presence.sign("ada", "")
    statements: list[str] = []
    engine = scene.shop.database()._engine
    event.listen(engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    assert presence.sign("ada", visit) == visit
    assert statements == []


def test_a_sign_after_the_end_begins_a_new_visit_and_brings_no_old_one_back(scene: Any) -> None:
    presence = scene.shop.presence()
    first = presence.sign("ada", "")
    scene.clock.advance(30)
    second = presence.sign("ada", first)
    assert second != first
    assert scene.waiting() == [f"visit:{second}"]
    scene.timer.add_job(MarkOffline(first))  # the old visit's job, late
    scene.clock.advance(0)
    assert online(scene) == [name_of("ada")]


def test_who_has_two_pages_open_is_there_until_both_are_closed(scene: Any) -> None:
    presence = scene.shop.presence()
    first, second = presence.sign("ada", ""), presence.sign("ada", "")
    for _ in range(6):
        scene.clock.advance(10)
        presence.sign("ada", second)
    assert f"visit:{first}" not in scene.waiting()
    assert online(scene) == [name_of("ada")]
    assert presence.gone("ada") == []
    assert presence.count() == 1
    scene.clock.advance(30)
    assert (online(scene), presence.count()) == ([], 0)


def test_the_list_says_when_each_is_gone_and_which_one_is_me(scene: Any) -> None:
    presence = scene.shop.presence()
    visit = presence.sign("ada", "")
    scene.clock.advance(10)
    presence.sign("ben", "")
    assert presence.sign("ada", visit) == visit
    ada, ben = presence.online("ben")
    assert (ada.me, ben.me) == (False, True)
    assert round(ada.due - scene.clock.wall()) == round(ben.due - scene.clock.wall()) == 30


def test_visits_of_yesterday_are_forgotten(scene: Any) -> None:
    presence = scene.shop.presence()
    presence.sign("ada", "")
    scene.clock.advance(30)
    presence.sign("ben", "")
    scene.clock.advance(86400)
    presence.sign("cleo", "")
    scene.clock.advance(30)
    assert [gone.name for gone in presence.gone("")] == [name_of("cleo"), name_of("ben")]
