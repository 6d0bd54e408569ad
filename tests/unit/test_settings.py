"""The rules of `jobwheel.settings`, one test each."""

import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobwheel.errors import SettingsError
from jobwheel.settings import ENVIRONMENT, FIELDS, MEMBERS, Settings, StoreSettings, WheelSettings, WorkerSettings, from_mapping, load

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "wheel.yml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problems(call: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        call()
    return str(caught.value).splitlines()


def problems_of(mapping: Any, **env: str) -> list[str]:
    return problems(lambda: from_mapping(mapping, env=env))


# What is given


def test_without_files_and_environment_it_is_the_default() -> None:
    expected = Settings(
        "wheel",
        WheelSettings(3600, 1.0),
        StoreSettings("sqlite", "jobwheel.db", None, "power", 1000, 7.0),
        WorkerSettings("threads", 8, 0, 100, 2.0),
        0,
        (),
        5.0,
    )
    assert load(env={}) == from_mapping({}) == Settings() == expected


def test_a_file_sets_what_it_names_and_nothing_else(write: Write) -> None:
    path = write("jobwheel:\n  backend: apscheduler\n  wheel: {tick: 2}\n  jobs: [shop.jobs, mail.jobs]\n")
    assert load(path, env={}) == Settings(backend="apscheduler", wheel=WheelSettings(tick=2.0), jobs=("shop.jobs", "mail.jobs"))


def test_a_later_file_goes_over_an_earlier_one_setting_by_setting(write: Write) -> None:
    first = write("jobwheel: {workers: {threads: 2, queue: 7}, jobs: [a, b]}", "first.yml")
    second = write("jobwheel: {workers: {threads: 4}, jobs: [c]}", "second.yml")
    assert load(first, second, env={}) == Settings(workers=WorkerSettings(threads=4, queue=7), jobs=("c",))


def test_the_environment_goes_over_every_file(write: Write) -> None:
    path = write("jobwheel: {backend: wheel, wheel: {slots: 60}, jobs: [a]}")
    env = {"JOBWHEEL_BACKEND": "apscheduler", "JOBWHEEL_WHEEL__SLOTS": "7", "JOBWHEEL_JOBS": "b, c,", "JOBWHEEL_STORE__KEEP_DAYS": "0.5"}
    got = load(path, env=env)
    assert got == Settings("apscheduler", WheelSettings(7), StoreSettings(keep_days=0.5), jobs=("b", "c"))


def test_every_setting_has_its_environment_variable() -> None:
    assert set(ENVIRONMENT.values()) == set(FIELDS)
    assert ENVIRONMENT["JOBWHEEL_WORKERS__THREADS"] == "workers.threads"
    assert ENVIRONMENT["JOBWHEEL_MAX_PENDING"] == "max_pending"


def test_an_empty_environment_variable_counts_as_not_set() -> None:
    assert load(env={"JOBWHEEL_BACKEND": "", "JOBWHEEL_WORKERS__THREADS": " "}) == Settings()


def test_the_name_of_the_config_file_is_reserved_and_no_setting() -> None:
    assert load(env={"JOBWHEEL_CONFIG": "config/wheel.yml"}) == Settings()


def test_what_kubernetes_sets_for_a_service_of_our_name_is_left_alone() -> None:
    env = {
        "JOBWHEEL_SERVICE_HOST": "10.0.0.1",
        "JOBWHEEL_SERVICE_PORT": "80",
        "JOBWHEEL_SERVICE_PORT_HTTP": "80",
        "JOBWHEEL_PORT": "tcp://10.0.0.1:80",
        "JOBWHEEL_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load(env=env) == Settings()


def test_variables_of_other_programs_are_left_alone() -> None:
    assert load(env={"PATH": "/bin", "MY_JOBWHEEL_BACKEND": "x", "JOBWHEELS": "y"}) == Settings()


def test_other_top_level_sections_belong_to_the_application(write: Write) -> None:
    path = write("shop: {backend: 5, backend: 6, secret: !vault xyz}\njobwheel: {max_pending: 3}\nmore: !!python/name:os.system\n")
    assert load(path, env={}) == Settings(max_pending=3)


def test_anchors_and_merges_work_also_from_another_section(write: Write) -> None:
    path = write("x: &many {threads: 3, queue: 1}\njobwheel:\n  workers:\n    <<: *many\n    queue: 9\n")
    assert load(path, env={}) == Settings(workers=WorkerSettings(threads=3, queue=9))


def test_an_empty_section_changes_nothing(write: Write) -> None:
    assert load(write("jobwheel:\n  store:\n  # kind: memory\n"), write("jobwheel:\n", "b.yml"), env={}) == Settings()


def test_a_mapping_is_taken_without_the_environment_unless_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBWHEEL_MAX_PENDING", "9")
    assert from_mapping({"max_pending": 1}).max_pending == 1
    assert from_mapping({"max_pending": 1}, env={"JOBWHEEL_MAX_PENDING": "2"}).max_pending == 2
    assert load().max_pending == 9


def test_a_path_object_may_stand_for_a_path() -> None:
    assert from_mapping({"store": {"path": Path("a") / "b.db"}}).store.path == str(Path("a/b.db"))


def test_settings_cannot_be_changed_and_have_no_room_for_more() -> None:
    settings = from_mapping({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.backend = "other"  # type: ignore[misc]
    assert not hasattr(settings, "__dict__")


def test_a_url_with_its_password_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(from_mapping({"store": {"url": "postgresql://u:s3cret@h/d"}}))


# What is refused


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"max_pendng": 5}, "settings: max_pendng: no such setting; did you mean max_pending?"),
        ({"workers": {"thread": 5}}, "settings: workers.thread: no such setting; did you mean workers.threads?"),
        ({"threads": 5}, "settings: threads: no such setting; did you mean workers.threads?"),
        ({"wheel": {"backend": "wheel"}}, "settings: wheel.backend: no such setting; did you mean backend?"),
        ({"store": {"treads": 5}}, "settings: store.treads: no such setting; did you mean workers.threads?"),
        ({"Backend": "wheel"}, "settings: Backend: no such setting; did you mean backend?"),
        ({"wheel": {"qqqqqqqq": 5}}, "settings: wheel.qqqqqqqq: no such setting; known here: wheel.slots, wheel.tick"),
        ({True: 5}, "settings: True: no such setting; "),
        ({"store.kind": "memory"}, "settings: store.kind: no such setting; nest it: "),
        ({"jobwheel": {}}, "settings: jobwheel: a mapping is taken as the section itself; give what stands under `jobwheel`"),
    ],
)
def test_an_unknown_or_misplaced_key_is_refused_with_the_nearest_valid_name(mapping: dict[Any, Any], expected: str) -> None:
    (line,) = problems_of(mapping)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("JOBWHEEL_BAKEND", "JOBWHEEL_BACKEND"),
        ("JOBWHEEL_STORE_KIND", "JOBWHEEL_STORE__KIND"),
        ("JOBWHEEL_WORKERS__THREAD", "JOBWHEEL_WORKERS__THREADS"),
        ("JOBWHEEL_WHEEL", "JOBWHEEL_WHEEL__SLOTS or JOBWHEEL_WHEEL__TICK"),
        ("JOBWHEEL_backend", "JOBWHEEL_BACKEND"),
    ],
)
def test_an_unknown_environment_variable_is_refused_with_the_nearest_valid_name(variable: str, nearest: str) -> None:
    assert problems(lambda: load(env={variable: "1"})) == [f"environment variable {variable}: no such setting; did you mean {nearest}?"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("wheel", "slots", 0),
        ("wheel", "slots", 1.5),
        ("wheel", "slots", True),
        ("wheel", "slots", "60"),
        ("wheel", "slots", None),
        ("wheel", "tick", 0),
        ("wheel", "tick", -1.0),
        ("wheel", "tick", math.inf),
        ("wheel", "tick", math.nan),
        ("wheel", "tick", True),
        ("wheel", "tick", "1e3"),
        ("store", "path", ""),
        ("store", "path", 5),
        ("store", "url", 5),
        ("store", "durability", "disk"),
        ("store", "keep", -1),
        ("store", "keep_days", -0.1),
        ("store", "keep_days", math.inf),
        ("workers", "threads", -1),
        ("workers", "queue", -1),
        ("workers", "coroutines", 0),
        ("workers", "ageing", math.nan),
        ("", "backend", 5),
        ("", "max_pending", -1),
        ("", "jobs", "shop.jobs"),
        ("", "jobs", ["shop jobs"]),
        ("", "jobs", [".jobs"]),
        ("", "jobs", [5]),
        ("", "exit_timeout", -1),
        ("", "exit_timeout", math.inf),
    ],
)
def test_a_wrong_type_or_range_is_refused_with_what_it_must_be(section: str, key: str, value: object) -> None:
    (line,) = problems_of({section: {key: value}} if section else {key: value})
    assert line.startswith(f"settings: {section}{'.' if section else ''}{key}: ")
    assert f"({type(value).__name__}) will not do; it must be " in line


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("JOBWHEEL_WORKERS__THREADS", "eight"),
        ("JOBWHEEL_WHEEL__TICK", "inf"),
        ("JOBWHEEL_WHEEL__TICK", "nan"),
        ("JOBWHEEL_WHEEL__SLOTS", "0"),
        ("JOBWHEEL_JOBS", "a b"),
        ("JOBWHEEL_STORE__DURABILITY", "x"),
    ],
)
def test_a_bad_value_in_the_environment_is_refused_under_its_variable(variable: str, text: str) -> None:
    (line,) = problems(lambda: load(env={variable: text}))
    assert line.startswith(f"environment variable {variable}: ")
    assert "it must be" in line


@pytest.mark.parametrize("section", ["wheel", "store", "workers"])
@pytest.mark.parametrize("value", [5, "memory", ["kind"], False])
def test_a_section_that_is_no_mapping_is_refused(section: str, value: object) -> None:
    (line,) = problems_of({section: value})
    assert line.startswith(f"settings: the section {section} must be a mapping")


def test_an_unknown_member_is_refused_with_the_known_ones() -> None:
    assert problems_of({"backend": "redis"}) == ["settings: backend: there is no member 'redis'; known here: apscheduler, wheel"]
    assert problems_of({"backend": "whel"}) == ["settings: backend: there is no member 'whel'; did you mean wheel?"]


@pytest.mark.parametrize(
    ("section", "key", "word"),
    [("store", "kind", "postgres"), ("workers", "engine", "celery")],
)
def test_a_member_of_a_later_version_is_refused_as_such(section: str, key: str, word: str) -> None:
    (line,) = problems_of({section: {key: word}})
    assert line.startswith(f"settings: {section}.{key}: {word!r} comes in a later version; this one has ")


def test_each_seam_has_its_default_among_its_members() -> None:
    default = Settings()
    for setting, word in (("backend", default.backend), ("store.kind", default.store.kind), ("workers.engine", default.workers.engine)):
        assert MEMBERS[setting][word].place


def test_all_problems_of_all_layers_are_told_at_once_one_a_line(write: Write) -> None:
    first = write("jobwheel:\n  bakend: wheel\n  wheel: {slots: 0, tick: fast}\n  max_pending: 1\n  max_pending: 2\n", "first.yml")
    second = write("jobweel: {}\n", "second.yml")
    missing = first.with_name("missing.yml")
    lines = problems(lambda: load(first, second, missing, env={"JOBWHEEL_WORKERS__THREADS": "x", "JOBWHEEL_STORE__KIND": "memry"}))
    begins = [
        f"{first}: max_pending: it stands in line 4 and again in line 5; only one can count, remove the other",
        f"{first}: bakend: no such setting; did you mean backend?",
        f"{first}: wheel.slots: 0 (int) will not do; it must be a whole number from 1 on",
        f"{first}: wheel.tick: 'fast' (str) will not do; it must be a finite number above 0",
        f"{second}: there is no section `jobwheel:` (found: jobweel); put the settings under that name",
        f"{missing}: the file cannot be read (No such file or directory); check the path",
        "environment variable JOBWHEEL_STORE__KIND: there is no member 'memry'; did you mean memory?",
        "environment variable JOBWHEEL_WORKERS__THREADS: 'x' (str) will not do; it must be a whole number from 0 on",
    ]
    assert len(lines) == len(begins)
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)


def test_a_bad_value_is_told_although_a_later_layer_would_replace_it(write: Write) -> None:
    (line,) = problems(lambda: load(write("jobwheel: {wheel: {slots: 0}}"), env={"JOBWHEEL_WHEEL__SLOTS": "5"}))
    assert "wheel.slots" in line


@pytest.mark.parametrize("text", ["", "# nothing\n", "- jobwheel\n", "jobwheel\n", "backend: wheel\n", "42\n"])
def test_a_file_without_the_section_is_refused(write: Write, text: str) -> None:
    (line,) = problems(lambda: load(write(text), env={}))
    assert "there is no section `jobwheel:`" in line


@pytest.mark.parametrize("text", ["jobwheel: 5", "jobwheel: [a]", "jobwheel: wheel", "jobwheel: false"])
def test_a_section_that_is_no_mapping_is_refused_with_its_file(write: Write, text: str) -> None:
    path = write(text)
    (line,) = problems(lambda: load(path, env={}))
    assert line.startswith(f"{path}: the settings must be a mapping")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("jobwheel: {backend: wheel}\njobwheel: {max_pending: 1}\n", "jobwheel: it stands in line 1 and again in line 2"),
        ("jobwheel:\n  backend: wheel\n  backend: wheel\n", "backend: it stands in line 2 and again in line 3"),
        ("jobwheel:\n  wheel: {slots: 1}\n  wheel: {tick: 2.0}\n", "wheel: it stands in line 2 and again in line 3"),
        ("jobwheel:\n  wheel:\n    slots: 1\n    slots: 2\n", "wheel.slots: it stands in line 3 and again in line 4"),
    ],
)
def test_a_key_that_stands_twice_is_refused(write: Write, text: str, place: str) -> None:
    (line,) = problems(lambda: load(write(text), env={}))
    assert f": {place}; " in line


@pytest.mark.parametrize(
    "text",
    [
        "jobwheel: {",
        "jobwheel:\n\t- x",
        "jobwheel: !!python/object/apply:os.system [echo]",
        "jobwheel: {store: {path: !secret x}}",
        "---\njobwheel: {}\n---\njobwheel: {}\n",
        "jobwheel: {max_pending: 2026-13-45}",
        "jobwheel: {? [a] : d}",
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_file_in_one_line(write: Write, text: str) -> None:
    path = write(text)
    (line,) = problems(lambda: load(path, env={}))
    assert line.startswith(f"{path}: this is not valid YAML")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wheel.yml"
    path.write_bytes(b"jobwheel: \xff\xfe\x00")
    (line,) = problems(lambda: load(path, env={}))
    assert line.startswith(f"{path}: this is not valid YAML")


def test_a_directory_is_refused_as_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (line,) = problems(lambda: load(tmp_path, env={}))
    assert line.startswith(f"{tmp_path}: the file cannot be read")


def test_a_section_that_contains_itself_is_refused_and_does_not_hang(write: Write) -> None:
    assert problems(lambda: load(write("jobwheel: &a {store: *a}"), env={}))


# For any input

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.sampled_from(["kind", "slots", "tick"]), inner),
    max_leaves=8,
)
sections = st.dictionaries(
    st.sampled_from(["backend", "wheel", "store", "workers", "max_pending", "jobs", "exit_timeout"]) | st.text(), plain
)


def outcome(call: Callable[[], Settings]) -> Settings | list[str]:
    """The settings, or the lines of the error."""
    try:
        return call()
    except SettingsError as error:
        return str(error).splitlines()


@given(sections)
def test_any_mapping_gives_settings_or_one_error_that_names_the_source_in_each_line(mapping: dict[str, Any]) -> None:
    got = outcome(lambda: from_mapping(mapping))
    if isinstance(got, Settings):
        assert from_mapping(dataclasses.asdict(got)) == got
    else:
        assert all(line.startswith("settings: ") for line in got)


@given(st.text(max_size=40))
def test_any_text_in_the_environment_gives_settings_or_at_most_one_problem_a_variable(text: str) -> None:
    got = outcome(lambda: load(env=dict.fromkeys(ENVIRONMENT, text)))
    assert isinstance(got, Settings) or 1 <= len(got) <= len(ENVIRONMENT)


@given(
    st.fixed_dictionaries(
        {
            "max_pending": st.integers(0, 10**12),
            "exit_timeout": st.floats(0, 1e6),
            "jobs": st.lists(st.sampled_from(["a", "a.b", "shop.jobs"]), max_size=3),
            "wheel": st.fixed_dictionaries({"slots": st.integers(1, 10**6), "tick": st.floats(1e-6, 1e6)}),
            "store": st.fixed_dictionaries({"path": st.text(min_size=1, max_size=9), "url": st.none() | st.text(max_size=9)}),
        }
    )
)
def test_a_file_means_what_the_mapping_that_was_dumped_into_it_means(mapping: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wheel.yml"
        path.write_text(yaml.safe_dump({"jobwheel": mapping, "shop": mapping}), encoding="utf-8")
        assert load(path, env={}) == from_mapping(mapping)
