"""A message to thousands: each mail once, slice by slice, urgent ones before all others, and no more once it is stopped."""

from typing import Any

import pytest

from web_example.scenarios.mailing import MOST, SLICE, NoRecipients, NoSubject, NoSuchMessage, SendSlice


@pytest.fixture
def mailing(scene: Any) -> Any:
    """The service whose mails take no time; `order` tells the message of each as it is sent."""
    mailing = scene.shop.mailing()
    mailing._pause = lambda seconds: None
    return mailing


def sent(mailing: Any, customer: str = "ada", urgent: bool = False) -> list[tuple[str, int]]:
    return [(standing.message.subject, standing.sent) for standing in mailing.standings(customer, urgent=urgent, limit=10)]


def test_a_message_reaches_each_recipient_once(scene: Any, mailing: Any) -> None:
    message = mailing.write("ada", " The  timetable ", 3 * SLICE + 1)
    assert len(scene.waiting()) == 4
    assert sent(mailing) == [("The timetable", 0)]
    scene.clock.advance(0)
    assert sent(mailing) == [("The timetable", 3 * SLICE + 1)]
    assert mailing.unsent(message.id, 1, message.recipients) == []
    jobs = mailing.jobs_of(message.id)
    assert [job.progress[:2] for job in jobs] == [(SLICE, SLICE)] * 3 + [(1, 1)]
    assert jobs[0].log == (f"sent to recipients 1 to {SLICE}",)


def test_an_urgent_mail_overtakes_what_waits(scene: Any, mailing: Any) -> None:
    order: list[int] = []
    send = mailing.send

    def note(message_id: int, *more: Any, **names: Any) -> None:
        order.append(message_id)
        send(message_id, *more, **names)

    mailing.send = note
    mass = mailing.write("ada", "The timetable", 3 * SLICE)
    urgent = mailing.write_urgent("ada", "Another platform")
    scene.clock.advance(0)
    assert order == [urgent.id, mass.id, mass.id, mass.id]
    assert sent(mailing, urgent=True) == [("Another platform", 1)]


def test_a_stopped_message_goes_to_nobody_else(scene: Any, mailing: Any) -> None:
    message = mailing.write("ada", "The timetable", 3 * SLICE)
    with pytest.raises(NoSuchMessage):
        mailing.stop(message.id, "ben")
    mailing.stop(message.id, "ada")
    assert scene.waiting() == []
    scene.timer.add_job(SendSlice(message.id, 1, SLICE))  # one that had been claimed when it was stopped
    scene.clock.advance(0)
    assert sent(mailing) == [("The timetable", 0)]
    assert mailing.standings("ada", urgent=False, limit=1)[0].ended
    assert list(mailing.promises()) == []


def test_a_slice_that_a_crash_cut_short_sends_what_is_left(scene: Any, mailing: Any) -> None:
    message = mailing.write("ada", "The timetable", 2 * SLICE)
    mailing.send(message.id, [1, 2, 3])
    assert mailing.unsent(message.id, 1, SLICE) == list(range(4, SLICE + 1))
    mailing.send(message.id, [3])  # a repeat
    scene.clock.advance(0)
    assert sent(mailing) == [("The timetable", 2 * SLICE)]


def test_after_a_crash_only_what_is_unsent_is_promised_again(scene: Any, mailing: Any) -> None:
    message = mailing.write("ada", "The timetable", 3 * SLICE)
    urgent = mailing.write_urgent("ada", "Another platform")
    scene.timer.cancel_all()
    mailing.send(message.id, list(range(1, SLICE + 1)))
    scene.shop.rearming().rearm()
    keys = [f"mail:{message.id}:{SLICE + 1}", f"mail:{message.id}:{2 * SLICE + 1}", f"mail:{urgent.id}", "stats:hourly"]
    assert sorted(map(str, scene.waiting())) == sorted(keys)


def test_the_waiting_time_counts_from_the_click_to_the_start(scene: Any, mailing: Any) -> None:
    message = mailing.write("ada", "The timetable", 1)
    scene.timer.pause(f"mail:{message.id}:1")
    scene.clock.advance(7)
    scene.timer.resume(f"mail:{message.id}:1")
    scene.clock.advance(0)
    assert mailing.standings("ada", urgent=False, limit=1)[0].waited == pytest.approx(7)


@pytest.mark.parametrize(
    ("subject", "recipients", "refusal"),
    [("", 1, NoSubject), (" \n", 1, NoSubject), ("x" * 101, 1, NoSubject), ("x", 0, NoRecipients), ("x", MOST + 1, NoRecipients)],
)
def test_what_cannot_be_sent_is_refused_and_nothing_waits(
    scene: Any, mailing: Any, subject: str, recipients: int, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        mailing.write("ada", subject, recipients)
    assert scene.waiting() == []
    assert sent(mailing) == []
