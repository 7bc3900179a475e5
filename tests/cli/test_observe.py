"""`cadenza observe` on the command line: init, check, up."""

import argparse
import json
from pathlib import Path

import pytest

from cadenza.cli import observe
from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.bundle import read_manifest
from cadenza.observe.settings import Settings


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    observe.configure(parser)
    return observe.run(parser.parse_args(arguments))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Prometheus."""
    monkeypatch.setattr("shutil.which", lambda name: None)


def test_init_says_what_it_wrote_and_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "watch")
    assert call("init", folder, "--engine-url", "http://a:8000", "--engine-url", "http://b:8000/v1") == 0
    out, err = capsys.readouterr()
    assert f"wrote {folder}/prometheus.yml" in out.splitlines()
    assert len(out.splitlines()) == 13
    assert f"cadenza observe up {folder}" in err
    manifest = read_manifest(tmp_path / "watch")
    assert manifest is not None
    assert manifest.settings == Settings(engines=("http://a:8000", "http://b:8000/v1"))


def test_init_again_keeps_settings_and_changed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("init", str(tmp_path), "--exporter", "a:9101", "--slo-ttft-p99-s", "0.5")
    (tmp_path / "rules" / "alerts.yml").write_text("groups: []\n", encoding="utf-8")
    capsys.readouterr()
    assert call("init", str(tmp_path), "--engine-url", "http://a:8000") == 0
    out, err = capsys.readouterr()
    assert f"updated {tmp_path}/prometheus.yml" in out
    assert f"kept {tmp_path}/rules/alerts.yml: it was changed since it was written (--force overwrites it)" in err
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.settings == Settings(engines=("http://a:8000",), exporters=("a:9101",), slo_ttft_p99_s=0.5)
    call("init", str(tmp_path), "--force")
    assert f"updated {tmp_path}/rules/alerts.yml" in capsys.readouterr().out


def test_init_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", str(tmp_path), "--json") == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert list(told) == ["created", "updated", "unchanged", "kept"]
    assert len(told["created"]) == 13
    (tmp_path / "alertmanager.yml").write_text("mine", encoding="utf-8")
    call("init", str(tmp_path), "--json", "--exporter", "127.0.0.1:19101")
    told = json.loads(capsys.readouterr().out)
    assert (told["created"], set(told["updated"])) == ([], {"prometheus.yml", "README.md"})
    assert (len(told["unchanged"]), told["kept"]) == (10, ["alertmanager.yml"])


def test_init_names_an_engine_that_no_exporter_is_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("init", str(tmp_path), "--engine-url", "http://box:8000")
    assert "note: no exporter is at box, where the engine box:8000 is" in capsys.readouterr().err
    call("init", str(tmp_path), "--exporter", "box:9101")
    assert "note:" not in capsys.readouterr().err


def test_what_comes_next_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "with a blank"
    call("init", str(folder))
    assert f"  cadenza observe up '{folder}'\n" in capsys.readouterr().err
    assert f"cadenza observe up '{folder}'\n" in (folder / "README.md").read_text(encoding="utf-8")


def test_no_folder_is_not_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("init", "")
    assert "it is empty: name a folder" in capsys.readouterr().err


def test_init_refuses_what_makes_no_sense_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--exporter 'a' is not HOST:PORT"):
        call("init", str(tmp_path), "--exporter", "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("bare")
def test_check_says_what_it_could_not_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("init", str(tmp_path))
    capsys.readouterr()
    assert call("check", str(tmp_path)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("ok ")
    assert [line.split()[0] for line in out if not line.startswith(" ")] == ["ok", "skipped", "skipped"]
    assert sum("apt-get install prometheus" in line for line in out) == 2


@pytest.mark.usefixtures("bare")
def test_check_fails_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("init", str(tmp_path))
    alerts = tmp_path / "rules" / "alerts.yml"
    alerts.write_text(
        alerts.read_text(encoding="utf-8").replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_factor"),
        encoding="utf-8",
    )
    capsys.readouterr()
    assert call("check", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAILED")
    assert "rules/alerts.yml: EngineKvCacheNearlyFull: vllm:gpu_cache_usage_factor: it never existed" in out
    assert call("check", str(tmp_path), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [sorted(one) for one in told] == [["name", "skipped", "wrong"]] * 3
    assert told[0]["wrong"]


@pytest.mark.usefixtures("bare")
def test_up_without_prometheus_says_how_to_get_it(tmp_path: Path) -> None:
    call("init", str(tmp_path))
    with pytest.raises(CadenzaError, match="prometheus is not installed"):
        call("up", str(tmp_path))


def test_a_deed_is_needed() -> None:
    with pytest.raises(SystemExit):
        call()
