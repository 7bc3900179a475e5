"""A bundle is written whole, written again without a change, and never over what somebody changed."""

import re
from pathlib import Path

import pytest
import yaml

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.bundle import MANIFEST, read_manifest, write
from cadenza.observe.settings import Settings
from cadenza.observe.shipped import FOLDER, lay_out, read_text

FILES = {
    *("prometheus.yml", "rules/recording.yml", "rules/alerts.yml", "rules/tests.yml", "alertmanager.yml"),
    *("compose.yml", "README.md", "grafana/provisioning/datasources/cadenza.yml"),
    "grafana/provisioning/dashboards/cadenza.yml",
    *(f"grafana/dashboards/{name}.json" for name in ("cluster", "engine", "gpu", "runs")),
}


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file's bytes and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_all_files_are_written(tmp_path: Path) -> None:
    written = write(Settings(), tmp_path / "new" / "folder")
    assert set(written.created) == FILES
    assert set(files_in(tmp_path / "new" / "folder")) == FILES | {MANIFEST}
    assert (written.updated, written.unchanged, written.kept) == ([], [], [])


def test_a_second_time_touches_nothing(tmp_path: Path) -> None:
    write(Settings(), tmp_path)
    before = files_in(tmp_path)
    written = write(Settings(), tmp_path)
    assert set(written.unchanged) == FILES
    assert files_in(tmp_path) == before


def test_other_settings_change_only_what_depends_on_them(tmp_path: Path) -> None:
    write(Settings(), tmp_path)
    written = write(Settings(exporters=("box:9101",)), tmp_path)
    assert set(written.updated) == {"prometheus.yml", "README.md"}
    assert "box:9101" in (tmp_path / "prometheus.yml").read_text(encoding="utf-8")


def test_a_file_that_somebody_changed_stays_until_forced(tmp_path: Path) -> None:
    write(Settings(), tmp_path)
    mine = "# mine\nreceivers: []\n"
    (tmp_path / "alertmanager.yml").write_text(mine, encoding="utf-8")
    for _ in range(2):
        written = write(Settings(slo_ttft_p99_s=1.0), tmp_path)
        assert written.kept == ["alertmanager.yml"]
        assert (tmp_path / "alertmanager.yml").read_text(encoding="utf-8") == mine
    forced = write(Settings(slo_ttft_p99_s=1.0), tmp_path, force=True)
    assert forced.updated == ["alertmanager.yml"]
    assert (tmp_path / "alertmanager.yml").read_text(encoding="utf-8") != mine
    assert write(Settings(slo_ttft_p99_s=1.0), tmp_path).kept == []


def test_a_folder_with_files_of_somebody_s_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"\xff theirs")
    (tmp_path / "other").write_bytes(b"")
    before = files_in(tmp_path)
    with pytest.raises(UsageError, match=r"did not write \(README.md\): choose a new or empty folder"):
        write(Settings(), tmp_path)
    assert files_in(tmp_path) == before
    assert "README.md" in write(Settings(), tmp_path, force=True).updated


def test_files_of_another_kind_are_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"mine")
    assert set(write(Settings(), tmp_path).created) == FILES
    assert (tmp_path / "notes.txt").read_bytes() == b"mine"


def test_a_manifest_that_was_lost_is_made_anew(tmp_path: Path) -> None:
    write(Settings(), tmp_path)
    (tmp_path / MANIFEST).unlink()
    assert set(write(Settings(), tmp_path).unchanged) == FILES
    assert (tmp_path / MANIFEST).is_file()


@pytest.mark.parametrize("name", ["a[b]", "a*", "a?", "a\\b", "$HOME", "a\nb", "a\udcffb"])
def test_a_folder_whose_name_means_more_than_itself_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="choose another folder"):
        write(Settings(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_every_part_can_be_copied_by_itself(tmp_path: Path) -> None:
    """No anchors: one job of prometheus.yml, in another file, is what it was."""
    files = lay_out(Settings(), tmp_path)
    for name, text in files.items():
        if name.endswith(".yml"):
            assert not any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in yaml.scan(text)), name


def test_a_change_that_was_taken_back_is_none(tmp_path: Path) -> None:
    write(Settings(), tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text("x", encoding="utf-8")
    assert write(Settings(), tmp_path).kept == ["README.md"]
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert write(Settings(), tmp_path).kept == []
    assert write(Settings(exporters=("a:1",)), tmp_path).kept == []


def test_the_settings_are_remembered(tmp_path: Path) -> None:
    settings = Settings(engines=("http://a:1", "https://b/c"), slo_ttft_p99_s=0.5)
    write(settings, tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.settings == settings
    assert read_manifest(tmp_path / "nowhere") is None


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="no manifest of this version of cadenza"):
        read_manifest(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="is a file: name a folder"):
        write(Settings(), tmp_path / "file")
    with pytest.raises(CadenzaError, match=r"prometheus\.yml cannot be written"):
        write(Settings(), tmp_path / "file" / "below")


def test_a_manifest_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(CadenzaError, match="cannot be read: Is a directory"):
        write(Settings(), tmp_path)


def test_everything_is_on_loopback(tmp_path: Path) -> None:
    files = lay_out(Settings(), tmp_path)
    services = yaml.safe_load(files["compose.yml"])["services"]
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert "--web.listen-address=127.0.0.1:9093" in services["alertmanager"]["command"]
    assert "--cluster.listen-address=" in services["alertmanager"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert not any("0.0.0.0" in text for text in files.values())


def test_grafana_finds_the_dashboards_and_prometheus(tmp_path: Path) -> None:
    files = lay_out(Settings(prometheus="127.0.0.1:19090"), tmp_path)
    (provider,) = yaml.safe_load(files["grafana/provisioning/dashboards/cadenza.yml"])["providers"]
    assert provider["options"]["path"] == str(tmp_path / "grafana" / "dashboards")
    (source,) = yaml.safe_load(files["grafana/provisioning/datasources/cadenza.yml"])["datasources"]
    assert source["url"] == "http://127.0.0.1:19090"
    assert source["jsonData"]["timeInterval"] == "1s"
    for service in yaml.safe_load(files["compose.yml"])["services"].values():
        bundle, data = service["volumes"]
        assert (bundle["source"], bundle["target"], bundle["read_only"]) == (str(tmp_path), str(tmp_path), True)
        assert re.fullmatch(r"[a-z]+:/[a-z/]+", data)


def test_a_shipped_file_in_which_nothing_differs_is_copied_as_it_is(tmp_path: Path) -> None:
    files = lay_out(Settings(), tmp_path)
    for name in ("rules/recording.yml", "rules/alerts.yml", "rules/tests.yml", "prometheus.yml", "alertmanager.yml"):
        assert files[name] == read_text(name)
    other = lay_out(Settings(slo_ttft_p99_s=1.0), tmp_path)["rules/alerts.yml"]
    assert other != files["rules/alerts.yml"]
    # The comment at the top stays.
    assert other.partition("groups:")[0] == files["rules/alerts.yml"].partition("groups:")[0]


def test_addresses_that_are_exchanged_are_filled_in_once(tmp_path: Path) -> None:
    settings = Settings(prometheus="127.0.0.1:9093", alertmanager="127.0.0.1:9090")
    config = yaml.safe_load(lay_out(settings, tmp_path)["prometheus.yml"])
    (own,) = [job for job in config["scrape_configs"] if job["job_name"] == "prometheus"]
    assert own["static_configs"] == [{"targets": ["127.0.0.1:9093"]}]
    assert config["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["127.0.0.1:9090"]}]}]


def test_nothing_of_the_shipped_defaults_is_left_in_a_bundle(tmp_path: Path) -> None:
    settings = Settings(
        engines=("http://e:1",), exporters=("x:2",), prometheus="127.0.0.1:3", alertmanager="127.0.0.1:4"
    )
    for name, text in lay_out(settings, tmp_path).items():
        for default in (FOLDER, ":8000", ":9101", ":9090", ":9093", "{folder}", "{alerts}", "{slo}"):
            if not name.startswith("rules/"):
                assert default not in text.replace("box:8000", ""), (name, default)
