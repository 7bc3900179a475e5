"""Flags to spec: what each becomes, and one clear sentence with exit code 2 for everything that makes no sense."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cadenza.cli.flags import FLAGS, add_flags
from cadenza.cli.main import main
from cadenza.cli.measure import without_secrets
from cadenza.cli.options import read_credentials, read_spec
from cadenza.errors import UsageError
from cadenza.spec import Slo, Spec, Telemetry, Timeouts


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, grid=True)
    return parser.parse_args(argv)


def spec(*argv: str) -> Spec:
    return read_spec(parse(*argv), default_concurrency=(1, 2, 4, 8, 16))


def test_without_flags_the_embedded_engine_over_the_grid() -> None:
    found = spec()
    assert (found.urls, found.engine, found.concurrency) == ((), "mi50-rx6900xt", (1, 2, 4, 8, 16))
    assert (found.rates_per_s, found.requests, found.api, found.cache) == ((), None, "chat", "unique")


def test_every_flag_reaches_its_field() -> None:
    found = spec(
        *("--url", "http://a:1", "--url", "http://b:1", "--model", "m", "-c", "4,8", "--rate", "0.5,2"),
        *("--arrivals", "gamma:0.5", "--requests", "10", "--warmup", "0", "--seed", "7", "--prompts", "random:9"),
        *("--output-tokens", "3:5", "--api", "completions", "--cache", "reuse", "--extra-body", '{"top_k":1}'),
        *("--header", "X-Team: secret", "--slo", "ttft=500ms"),
    )
    assert found == Spec(
        urls=("http://a:1", "http://b:1"),
        models=("m",),
        concurrency=(4, 8),
        rates_per_s=(0.5, 2.0),
        arrivals="gamma:0.5",
        requests=10,
        warmup=0,
        seed=7,
        prompts="random:9",
        output_tokens=(3, 5),
        api="completions",
        cache="reuse",
        extra_body={"top_k": 1},
        headers=("X-Team",),
        slo=Slo(ttft_ms=500),
    )


def fields_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        if field.type in (Timeouts, Telemetry):
            yield from fields_of(field.type, f"{field.name}.")
        else:
            yield prefix + field.name


def test_every_field_of_a_spec_has_one_flag_and_every_flag_a_field() -> None:
    assert sorted(flag.field for flag in FLAGS) == sorted(fields_of(Spec))
    parser = argparse.ArgumentParser()
    add_flags(parser, grid=True)
    declared = {text for action in parser._actions for text in action.option_strings}
    assert {name for flag in FLAGS for name in flag.names} <= declared


def test_what_was_for_a_file_only_has_flags() -> None:
    found = spec(
        *("http://a:1", "http://b:1", "--insecure", "--workers", "2", "--no-ignore-eos", "--temperature", "0"),
        *("--connect-timeout", "500ms", "--first-token-timeout", "5m", "--stall-timeout", "9", "--timeout", "1h"),
        *("--no-telemetry", "--telemetry-interval", "2s", "--telemetry-root", "/r", "--metrics-url", "http://c:2/m"),
    )
    assert found.urls == ("http://a:1", "http://b:1")
    assert (found.verify_tls, found.workers, found.ignore_eos, found.temperature) == (False, 2, False, 0)
    assert found.timeouts == Timeouts(connect_s=0.5, first_token_s=300, stall_s=9, total_s=3600)
    assert found.telemetry == Telemetry(interval_s=2, root="/r", metrics_url="http://c:2/m", off=True)


def test_a_flag_of_a_table_leaves_the_rest_of_the_files_table(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[timeouts]\nconnect_s = 1\nstall_s = 2\n")
    found = spec("--spec", str(path), "--stall-timeout", "3")
    assert found.timeouts == Timeouts(connect_s=1, stall_s=3)


def test_a_url_may_stand_alone_or_after_its_flag() -> None:
    assert spec("http://a:1").urls == spec("--url", "http://a:1").urls == ("http://a:1",)
    assert spec("-c", "4", "http://a:1", "--url", "http://b:1").urls == ("http://a:1", "http://b:1")


def test_a_misspelt_setting_gets_the_closest_known_one(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    for text, sentence in (
        ("concurency = [3]", r"b\.toml: unknown setting 'concurency' \(did you mean 'concurrency'\?\)"),
        ("[timeouts]\nstal_s = 3", r"b\.toml: unknown setting 'timeouts\.stal_s' \(did you mean 'stall_s'\?\)"),
        ("zzz = 1", r"b\.toml: unknown setting 'zzz'$"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=sentence):
            spec("--spec", str(path))


def test_so_does_every_flag_of_the_embedded_engine() -> None:
    found = spec("--engine", "other", "--speed", "4", "--timing", "calibrated:D", "--repeat", "2", "--duration", "9")
    assert (found.engine, found.speed, found.timing) == ("other", 4, "calibrated:D")
    assert (found.repeat, found.duration_s, found.virtual) == (2, 9, False)
    assert spec("--virtual").virtual
    assert spec().timing is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("0.5m", 30), (" 2m ", 120)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert spec("--max-time", text).max_time_s == seconds
    assert spec("--cooldown", text).cooldown_s == seconds


def test_until_enough() -> None:
    assert (spec().max_time_s, spec().cooldown_s) == (900, 60)
    assert spec("--cooldown", "0").cooldown_s == 0
    assert spec("--requests", "auto").requests == "auto"
    bounded = spec("--max-time", "5m")  # says that points are measured until that is enough
    assert (bounded.requests, bounded.max_time_s) == ("auto", 300)
    quick = spec("--quick")
    assert (quick.requests, quick.max_time_s, quick.duration_s) == ("auto", 120, None)
    assert spec("--quick", "--requests", "auto", "--seed", str(quick.seed)) == quick


def test_so_in_a_file_where_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('requests = "auto"\nmax_time_s = 60\ncooldown_s = 5.5\n')
    found = spec("--spec", str(path))
    assert (found.requests, found.max_time_s, found.cooldown_s) == ("auto", 60, 5.5)
    assert spec("--spec", str(path), "--requests", "7").requests == 7
    path.write_text("duration_s = 9\nrequests = 50\n")
    assert (spec("--spec", str(path)).duration_s, spec("--spec", str(path)).requests) == (9, 50)
    for flags, seconds in ((("--quick",), 120), (("--max-time", "1m"), 60)):
        found = spec("--spec", str(path), *flags)
        assert (found.requests, found.duration_s, found.max_time_s) == ("auto", None, seconds)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("max_time_s = 0", "max_time_s"),
        ("max_time_s = 604801", "max_time_s"),
        ("max_time_s = inf", "max_time_s"),
        ("max_time_s = nan", "max_time_s"),
        ("cooldown_s = -0.1", "cooldown_s"),
        ("cooldown_s = 604801", "cooldown_s"),
        ("cooldown_s = nan", "cooldown_s"),
        ("requests = 0", "requests"),
        ("requests = -5", "requests"),
        ('requests = "many"', "requests"),
        ('requests = "auto"\nduration_s = 5', "--duration exclude each other"),
    ],
)
def test_what_a_file_has_out_of_its_range_is_refused(line: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match=field):
        spec("--spec", str(path))


def shown(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["sweep", flag])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_has_the_common_flags_and_help_all_has_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = argparse.ArgumentParser()
    add_flags(parser, grid=True)
    flags = {action.option_strings[0] for action in parser._actions if action.option_strings}
    common, every = shown("--help", capsys), shown("--help-all", capsys)
    described = {flag for flag in flags if re.search(rf"\n  {flag}[ ,\n]", common)}
    assert {"--url", "-c", "--rate", "--requests", "--quick", "--out", "--slo", "--help-all"} <= described
    rare = flags - described
    assert {"--timing", "--speed", "--cooldown", "--warmup", "--seed", "--extra-body", "--header", "--timeout"} <= rare
    listed = common.partition("--help-all  ")[2].partition("what to measure:")[0]
    assert all(flag in listed for flag in rare)  # it says what it leaves out
    assert common.count("\n") <= 60
    assert all(re.search(rf"\n  {flag}[ ,\n]", every) for flag in flags)
    assert "==SUPPRESS==" not in common + every


def test_a_rate_without_concurrency_is_an_open_loop() -> None:
    assert spec("--rate", "2").concurrency == ()
    assert spec("--rate", "2", "-c", "4").concurrency == (4,)


def test_a_seed_is_drawn_anew_unless_given() -> None:
    assert spec("--seed", "5").seed == 5
    assert len({spec().seed for _ in range(8)}) > 1


def test_a_point_is_never_measured_twice() -> None:
    assert spec("-c", "4,4,8").concurrency == (4, 8)


BAD = [
    (("-c", "0"), "-c '0' is not a whole number from 1 up"),
    (("-c", "4,x"), "-c 'x' is not"),
    (("-c", ""), "-c '' is not"),
    (("-c", "1.5"), "-c '1.5' is not"),
    (("--rate", "0"), "--rate '0' is not a number above 0"),
    (("--rate", "inf"), "--rate 'inf' is not"),
    (("--rate", "nan"), "--rate 'nan' is not"),
    (("--requests", "-3"), "--requests '-3' is not a whole number from 1 up, nor auto"),
    (("--requests", "0"), "--requests '0' is not a whole number from 1 up, nor auto"),
    (("--requests", "some"), "--requests 'some' is not a whole number from 1 up, nor auto"),
    (("--requests", "auto", "--duration", "5"), "--requests auto and --duration exclude each other"),
    (("--max-time", "0"), "--max-time '0' is not a time above 0 s and at most 7 days"),
    (("--max-time=-1m",), "--max-time '-1m' is not a time above 0 s"),
    (("--max-time", "5d"), "--max-time '5d' is not a time above 0 s and at most 7 days: write 90s, 15m or 1h"),
    (("--max-time", "m"), "--max-time 'm' is not a time above 0 s"),
    (("--max-time", "nan"), "--max-time 'nan' is not a time above 0 s"),
    (("--max-time", "999h"), "--max-time '999h' is not a time above 0 s and at most 7 days"),
    (("--max-time", "5m", "--requests", "9"), "--max-time is for --requests auto: leave it out"),
    (("--max-time", "5m", "--duration", "9"), "--max-time is for --requests auto: leave it out"),
    (("--quick", "--requests", "9"), "--quick sets --requests and --max-time: leave these and --duration out"),
    (("--quick", "--max-time", "9"), "--quick sets --requests and --max-time: leave these and --duration out"),
    (("--quick", "--duration", "9"), "--quick sets --requests and --max-time: leave these and --duration out"),
    (("--cooldown", "-1"), "--cooldown '-1' is not a time from 0 s to 7 days"),
    (("--cooldown", "soon"), "--cooldown 'soon' is not a time from 0 s to 7 days"),
    (("--duration", "soon"), "--duration 'soon' is not a time above 0 s"),
    (("--warmup", "-1"), "--warmup '-1' is not a whole number from 0 up"),
    (("--seed", "abc"), "--seed 'abc'"),
    (("--speed", "0"), "--speed '0' is not a number above 0"),
    (("--output-tokens", "9:3"), "--output-tokens '9:3': LO must be from 1 to HI"),
    (("--output-tokens", "0"), "--output-tokens '0'"),
    (("--extra-body", "{"), "--extra-body is not JSON"),
    (("--extra-body", "[1]"), "--extra-body is not a JSON object"),
    (("--header", "nocolon"), "--header is written 'Name: value'"),
    (("--url", "http://a", "--engine", "x"), "--url and --engine exclude each other"),
    (("--url", "http://a", "--speed", "2"), "--speed is for the embedded engine"),
    (("--url", "http://a", "--virtual"), "--virtual is for the embedded engine"),
    (("--url", "http://a", "--timing", "physics"), "--timing is for the embedded engine"),
    (("--virtual", "--speed", "2"), "--virtual and --speed exclude each other"),
    (("--timing", "magic"), "--timing 'magic' is not one of calibrated, physics, measured"),
    (("--spec", "/nowhere.toml"), "--spec /nowhere.toml"),
    (("--slo", ""), "--slo takes ttft, tpot, latency and attainment, not ''"),
    (("--slo", "itl=5"), "--slo takes ttft, tpot, latency and attainment, not 'itl'"),
    (("--slo", "ttft"), "--slo ttft has no value: write e.g. ttft=500ms"),
    (("--slo", "ttft="), "--slo ttft '' is not a time above 0: write e.g. ttft=500ms or ttft=0.5s"),
    (("--slo", "ttft=500us"), "--slo ttft '500us': the unit 'us' is not known; use ms or s"),
    (("--slo", "ttft=5,ttft=6s"), "--slo gives ttft twice"),
    (("--slo", "tpot=0ms"), "--slo tpot '0ms' is not a time above 0"),
    (("--slo", "tpot=-1s"), "--slo tpot '-1s' is not a time above 0"),
    (("--slo", "tpot=nan"), "--slo tpot 'nan' is not a time above 0"),
    (("--slo", "tpot=inf"), "--slo tpot 'inf' is not a time above 0"),
    (("--slo", "tpot=1e400"), "--slo tpot '1e400' is not a time above 0"),
    (("--slo", "tpot=1e308s"), "--slo tpot '1e308s' is not a time above 0"),
    (("--slo", "ttft=1,attainment=0"), "--slo attainment '0' is not a share above 0 and at most 1"),
    (("--slo", "ttft=1,attainment=1.01"), "--slo attainment '1.01' is not a share above 0 and at most 1"),
    (("--slo", "ttft=1,attainment=95%"), "--slo attainment '95%' is not a share above 0 and at most 1, e.g. 0.95"),
    (("--slo", "attainment=0.95"), "--slo attainment needs a bound to be attained: add ttft, tpot or latency"),
]


@pytest.mark.parametrize(("argv", "sentence"), BAD, ids=[" ".join(argv) for argv, _ in BAD])
def test_what_makes_no_sense_is_one_sentence_and_exit_code_2(
    argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        spec(*argv)
    assert sentence in str(caught.value)
    assert main(["sweep", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_spec_in_a_manifest_is_the_same_run_again(tmp_path: Path) -> None:
    first = spec("--url", "http://a:1", "--rate", "2", "--output-tokens", "3:4", "--extra-body", '{"top_k":1}')
    path = tmp_path / "manifest.json"
    path.write_bytes(msgspec.json.encode({"schema": 1, "spec": first}))
    assert spec("--spec", str(path)) == first
    assert spec("--spec", str(path), "--seed", "1", "-c", "2").seed == 1


def test_a_toml_file_is_settings_too_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('urls = ["http://a:1"]\nconcurrency = [3]\noutput_tokens = [5, 6]\n')
    assert spec("--spec", str(path)).output_tokens == (5, 6)
    path.write_text("verify_tls = false\n[timeouts]\nconnect_s = 1\nfirst_token_s = 2\nstall_s = 3.5\ntotal_s = 4\n")
    found = spec("--spec", str(path), "--url", "http://a:1")
    assert found.timeouts == Timeouts(connect_s=1, first_token_s=2, stall_s=3.5, total_s=4)
    assert (found.verify_tls, found.concurrency) == (False, (1, 2, 4, 8, 16))
    for bad in ("0", "-1", "inf", "nan"):
        path.write_text(f"[timeouts]\nstall_s = {bad}\n")
        with pytest.raises(UsageError, match=r"timeouts.stall_s = .* is not a time above 0 s"):
            spec("--spec", str(path))
    path.write_text("concurency = [3]\n")
    with pytest.raises(UsageError, match="concurency"):
        spec("--spec", str(path))


def test_bounds_of_a_file_are_checked_and_those_of_the_command_line_replace_them(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[slo]\nttft_ms = 500\nattainment = 0.9\n")
    assert spec("--spec", str(path)).slo == Slo(ttft_ms=500, attainment=0.9)
    assert spec("--spec", str(path), "--slo", "tpot=50ms").slo == Slo(tpot_ms=50)
    for line, sentence in (
        *((f"ttft_ms = {bad}", "ttft_ms = .* is not a finite number of milliseconds above 0") for bad in _BAD_TIMES),
        *((f"ttft_ms = 1\nattainment = {bad}", "attainment = .* is not a share above 0") for bad in _BAD_SHARES),
        ("attainment = 0.9", "attainment needs a bound"),
    ):
        path.write_text(f"[slo]\n{line}\n")
        with pytest.raises(UsageError, match=sentence):
            spec("--spec", str(path))


_BAD_TIMES = ("0", "-1", "inf", "nan")
_BAD_SHARES = ("0", "-0.1", "1.001", "nan", "inf")


def test_secrets_come_from_the_environment_or_a_file_and_are_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CADENZA_API_KEY", "from-env")
    assert read_credentials(parse()).as_headers() == (("Authorization", "Bearer from-env"),)
    key = tmp_path / "key"
    key.write_text("from-file\n")
    found = read_credentials(parse("--api-key-file", str(key), "--header", "X-Team: secret"))
    assert found.as_headers() == (("Authorization", "Bearer from-file"), ("X-Team", "secret"))
    assert "from-file" not in repr(found)
    assert "secret" not in repr(found)
    key.write_text("")
    with pytest.raises(UsageError, match="is empty"):
        read_credentials(parse("--api-key-file", str(key)))
    with pytest.raises(UsageError, match="No such file"):
        read_credentials(parse("--api-key-file", str(tmp_path / "none")))


def test_header_values_do_not_reach_the_manifest() -> None:
    argv = ["sweep", "--header", "X-Key: s3cret", "--header=X-Other: s3cret", "-c", "1"]
    kept = without_secrets(argv)
    assert kept == ["sweep", "--header", "X-Key: …", "--header=X-Other: …", "-c", "1"]


def test_a_bug_of_ours_is_a_line_to_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(args: argparse.Namespace) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("cadenza.cli.ls.run", broken)
    assert main(["ls"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "ZeroDivisionError at test_options.py:" in err


@pytest.mark.parametrize(
    "argv", [["show", "nowhere"], ["ls", "nowhere"], ["show"], ["sweep", "--no-such-flag"], ["dance"]]
)
def test_usage_is_exit_code_2(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(argv)
    except SystemExit as left:  # argparse's own way out
        code = int(left.code or 0)
    assert code == 2


def test_without_a_verb_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "examples:" in capsys.readouterr().out
