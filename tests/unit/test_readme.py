"""What the README shows is run, in order, as one program."""

import re
from pathlib import Path

import pytest
from sqlalchemy import Engine

from jobwheel.settings import load
from jobwheel.timer import TimerManager

README = Path(__file__).parents[2] / "README.md"
PARTS = README.read_text().split("\n## ")
SCENARIOS = next(part for part in PARTS if part.startswith("Seven things"))


def blocks_of(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_python_of_the_readme_runs_and_runs_again_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks build on each other, so they share one namespace; `assert`s in them are the test. The file outlives the first run."""
    monkeypatch.chdir(tmp_path)  # its timer makes the default file
    blocks = [block for part in PARTS if part is not SCENARIOS for block in blocks_of(part)]
    assert len(blocks) == 5
    for _ in range(2):
        space: dict[str, object] = {"__name__": "readme"}
        for block in blocks:
            exec(compile(block, "README.md", "exec"), space)
        timer, engine = space["timer"], space["engine"]
        assert isinstance(timer, TimerManager)
        assert isinstance(engine, Engine)
        timer.shutdown()
        engine.dispose()
        assert (tmp_path / "jobwheel.db").exists()


@pytest.mark.parametrize("block", blocks_of(SCENARIOS), ids=range(1, 8))
def test_the_lines_of_each_scenario_run_as_they_stand(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_configuration_of_the_readme_is_the_default(tmp_path: Path) -> None:
    """Every setting that it shows has the value that holds without it."""
    (block,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    path = tmp_path / "wheel.yml"
    path.write_text(block)
    assert load(path, env={}) == load(env={})


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_files_that_the_readme_points_to_are_there(name: str) -> None:
    assert f"({name})" in README.read_text()
    assert (README.parent / name).is_file()
