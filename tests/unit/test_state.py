"""The table of states, walked pair by pair."""

import re
from itertools import product
from pathlib import Path

import pytest

from jobwheel import State
from jobwheel.errors import JobwheelError
from jobwheel.state import ENDED, MOVES, IllegalMove, check_move

LEGAL = {
    "scheduled": {"running", "paused", "cancelled", "unresolvable"},
    "paused": {"scheduled", "cancelled", "unresolvable"},
    "running": {"succeeded", "failed", "cancelled", "missed", "interrupted", "scheduled"},
    "succeeded": set(),
    "failed": {"scheduled"},
    "cancelled": set(),
    "missed": {"scheduled"},
    "interrupted": {"scheduled"},
    "unresolvable": {"scheduled", "running", "cancelled"},
}
"""Written down a second time, so that a change of the table is a decision and no slip."""


def test_names_are_upper_case_and_values_lower_case() -> None:
    assert {state.name: state.value for state in State} == {name.upper(): name for name in LEGAL}


@pytest.mark.parametrize(("now", "to"), list(product(State, State)), ids=lambda state: state.value)
def test_every_pair_of_states_is_legal_or_refused_as_the_table_says(now: State, to: State) -> None:
    if to.value in LEGAL[now.value]:
        check_move(now, to)
    else:
        with pytest.raises(IllegalMove, match=f"a {now} job cannot become {to}"):
            check_move(now, to)


def test_the_table_has_a_line_for_each_state() -> None:
    assert set(MOVES) == set(State)


def test_ended_states_are_those_that_only_a_retry_by_hand_leaves() -> None:
    assert {state.value for state in State if state.ended} == {"succeeded", "failed", "cancelled", "missed", "interrupted"}
    assert {state for state in State if state.ended} == ENDED
    for state in ENDED:
        assert MOVES[state] <= {State.SCHEDULED}


def test_every_state_can_be_reached_from_scheduled_and_every_waiting_one_can_end() -> None:
    reached = {State.SCHEDULED}
    while more := {to for now in reached for to in MOVES[now]} - reached:
        reached |= more
    assert reached == set(State)
    assert all(State.CANCELLED in MOVES[state] for state in State if not state.ended)


def test_an_illegal_move_says_what_is_legal() -> None:
    with pytest.raises(JobwheelError, match="legal from there: cancelled, scheduled, unresolvable"):
        check_move(State.PAUSED, State.RUNNING)
    with pytest.raises(JobwheelError, match="legal from there: nothing"):
        check_move(State.CANCELLED, State.RUNNING)


def test_a_state_equals_and_prints_as_its_value() -> None:
    assert State.FAILED == "failed"
    assert f"{State.FAILED}" == "failed"
    assert State("failed") is State.FAILED


def test_the_architecture_page_lists_exactly_the_legal_moves() -> None:
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    listed = {
        State(state): frozenset(State(to.strip()) for to in targets.split(","))
        for state, targets in re.findall(r"^(\w+) +-> ([\w, ]+)$", page, re.MULTILINE)
    }
    assert listed == {state: moves for state, moves in MOVES.items() if moves}
