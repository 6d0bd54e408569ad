"""The shop's section of the configuration: what is taken, and that what is not is told in words."""

from pathlib import Path

import pytest

from jobwheel.settings import load
from web_example.container import for_worker
from web_example.settings import ShopSettings, ShopSettingsError, read_shop

CONFIG = Path(__file__).parents[2] / "config"


def test_the_default_file_has_the_defaults_and_the_demo_is_over_in_seconds() -> None:
    default, demo = read_shop(CONFIG / "default.yml"), read_shop(CONFIG / "demo.yml")
    assert default == ShopSettings()
    assert (default.pay_within, default.hold_room, default.offline_after) == (15 * 60, 10 * 60, 30)
    assert (default.stars_after, default.change_after, default.count_at) == (48 * 3600, 3600, "0 * * * *")
    assert max(demo.pay_within, demo.hold_room, demo.offline_after, demo.stars_after, demo.change_after) <= 20
    assert default.database != demo.database


def test_the_shipped_files_keep_jobs_in_a_file_of_their_own_each() -> None:
    settings = [load(CONFIG / name, env={}) for name in ("default.yml", "demo.yml")]
    assert {each.jobs for each in settings} == {("web_example.jobs", "web_example.scenarios")}
    stores = [each.store for each in settings]
    assert [store.kind for store in stores] == ["sqlite", "sqlite"]
    assert len({store.path for store in stores}) == 2


@pytest.mark.parametrize("text", ["", "jobwheel: {}", "shop:", "shop: {}"])
def test_what_is_left_out_has_its_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "shop.yml").write_text(text)
    assert read_shop(tmp_path / "shop.yml") == ShopSettings()


@pytest.mark.parametrize(
    "text",
    ["shop: {pay_within: 0}", "shop: {pay_within: .nan}", "shop: {pay_within: yes}", "shop: {pay_within: soon}", "shop: {database: 5}",
     "shop: {database: ''}", "shop: {hold_room: -1}", "shop: {mail_takes: .inf}", "shop: {stars_after: '48h'}", "shop: {count_at: hourly}",
     "shop: {count_at: 5}", "shop: {count_at: '0 0 31 2 *'}", "shop: {pay_withn: 5}", "shop: [1]", "shop: {1: 2}", "shop: {", "shop: \x00"],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_name_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "shop.yml").write_text(text)
    with pytest.raises(ShopSettingsError, match=r"shop\.yml"):
        read_shop(tmp_path / "shop.yml")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ShopSettingsError, match="JOBWHEEL_CONFIG"):
        read_shop(tmp_path / "none.yml")


def test_a_worker_has_the_settings_of_the_file_that_it_was_given_and_of_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"jobwheel: {{store: {{kind: memory}}}}\nshop: {{hold_room: 7, database: {tmp_path / 'shop.db'}}}"
    (tmp_path / "shop.yml").write_text(text)
    monkeypatch.setenv("JOBWHEEL_CONFIG", str(tmp_path / "shop.yml"))
    container = for_worker()
    assert container.rooms().hold == 7
    container.database().close()
    monkeypatch.delenv("JOBWHEEL_CONFIG")
    with pytest.raises(ShopSettingsError, match="JOBWHEEL_CONFIG"):
        for_worker()
