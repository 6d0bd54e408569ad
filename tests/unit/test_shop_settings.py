"""The shop's section of the configuration: what is taken, and that what is not is told in words."""

from pathlib import Path

import pytest

from jobwheel.settings import load
from web_example.settings import ShopSettings, ShopSettingsError, read_shop

CONFIG = Path(__file__).parents[2] / "config"


def test_the_shipped_files_give_fifteen_minutes_and_twenty_seconds() -> None:
    assert read_shop(CONFIG / "default.yml").pay_within == 900
    assert read_shop(CONFIG / "demo.yml").pay_within == 20
    assert read_shop(CONFIG / "default.yml").database != read_shop(CONFIG / "demo.yml").database


def test_the_shipped_files_keep_jobs_in_a_file_of_their_own_each() -> None:
    stores = [load(CONFIG / name, env={}).store for name in ("default.yml", "demo.yml")]
    assert [store.kind for store in stores] == ["sqlite", "sqlite"]
    assert len({store.path for store in stores}) == 2


@pytest.mark.parametrize("text", ["", "jobwheel: {}", "shop:", "shop: {}"])
def test_what_is_left_out_has_its_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "shop.yml").write_text(text)
    assert read_shop(tmp_path / "shop.yml") == ShopSettings()


@pytest.mark.parametrize(
    "text",
    ["shop: {pay_within: 0}", "shop: {pay_within: .nan}", "shop: {pay_within: yes}", "shop: {pay_within: soon}", "shop: {database: 5}",
     "shop: {database: ''}", "shop: {pay_withn: 5}", "shop: [1]", "shop: {1: 2}", "shop: {", "shop: \x00"],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_name_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "shop.yml").write_text(text)
    with pytest.raises(ShopSettingsError, match=r"shop\.yml"):
        read_shop(tmp_path / "shop.yml")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ShopSettingsError, match="JOBWHEEL_CONFIG"):
        read_shop(tmp_path / "none.yml")
