"""The page of guarantees names its proofs: they are there, and its numbers are those of the code."""

import ast
import re
from pathlib import Path

from jobwheel import dispatcher, keeper
from jobwheel.stores.sqlite import file, rescue, touching

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "guarantees.md").read_text()


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 40
    missing = [f"{path}::{name}" for path, name in named if name not in functions(path)]
    assert missing == []


def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((TESTS / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_its_proof() -> None:
    """Above what is not promised, and but for what the reader must not do."""
    promises = re.split(r"^## Not promised", PAGE, flags=re.MULTILINE)[0].split("\n- ")[1:]
    unproven = [promise.splitlines()[0] for promise in promises if "::test_" not in promise and not promise.startswith("**Never")]
    assert unproven == []


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"waits {file.PATIENCE:g} seconds" in PAGE
    assert f"after {dispatcher.FIRST_WAIT:g} second, then ever less often, up to {dispatcher.LONGEST_WAIT:g}" in PAGE
    assert f"until {rescue.CRASHES} runs of the job ended in a crash" in " ".join(PAGE.split())
    assert f"{touching.AHEAD / 1e6:g} seconds later" in PAGE
    assert keeper.EACH == 1.0
    assert "once a second" in PAGE
