"""Bad input through the whole command line, over real sockets: one sentence, the right exit code, nothing lost."""

import json
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from support import faults
from support.fault_server import FaultServer

pytestmark = pytest.mark.slow
TLS = Path(__file__).parents[1] / "data" / "tls"
IMPATIENT = "[timeouts]\nfirst_token_s = 0.3\nstall_s = 0.3\n"


def cadenza(*argv: str, cwd: Path, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [sys.executable, "-m", "cadenza", *argv]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def sweep(url: str, cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    defaults = ("-c", "2", "--requests", "12", "--output-tokens", "4", "--out", "run", "--json")
    return cadenza("sweep", "--url", url, *defaults, *flags, cwd=cwd)


def settings(cwd: Path, text: str) -> tuple[str, str]:
    """The flag for settings that are no flags."""
    (cwd / "settings.toml").write_text(text)
    return "--spec", "settings.toml"


def only_point(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    (point,) = json.loads(done.stdout)["points"]
    assert isinstance(point, dict)
    return point


def after_the_trial(fault: faults.Behaviour) -> faults.Behaviour:
    """A good answer to the preflight, then `fault`."""
    return lambda received: (fault if received.number else faults.OK)(received)


def test_a_good_server_is_exit_code_0(tmp_path: Path) -> None:
    with FaultServer(faults.paced(0.005)) as server:
        done = sweep(server.url, tmp_path)
    assert done.returncode == 0, done.stderr
    point = only_point(done)
    assert point["verdict"] != "INVALID"  # what the client says of itself depends on who else uses this machine
    assert point["requests"] == {"planned": 12, "sent": 12, "ok": 12, "failed": 0, "dropped": 0, "outcomes": {"ok": 12}}
    assert cadenza("show", "run", "--json", cwd=tmp_path).stdout == done.stdout


def test_no_server_and_a_wrong_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = sweep(f"http://127.0.0.1:{port}", tmp_path)
    assert done.returncode == 3
    assert f"nothing listens on port {port}: is the server running, and is the port right?" in done.stderr
    assert not (tmp_path / "run").exists()
    done = sweep("http://no-such-host.invalid:8000", tmp_path)
    assert done.returncode == 3
    assert "no-such-host.invalid" in done.stderr


def test_a_server_that_speaks_no_http(tmp_path: Path) -> None:
    with FaultServer(faults.NO_HTTP) as server:
        done = sweep(server.url, tmp_path)
    assert done.returncode == 3
    assert "does not speak HTTP as it should" in done.stderr


def test_an_html_page(tmp_path: Path) -> None:
    page = faults.http_error(
        200, b"<html><head><title>Welcome to nginx!</title></head></html>", content_type="text/html"
    )
    with FaultServer(routes={"/v1/models": page}) as server:
        done = sweep(server.url, tmp_path)
    assert done.returncode == 3
    assert "an HTML page: Welcome to nginx!" in done.stderr


@pytest.mark.parametrize(
    ("behaviour", "flags", "sentence"),
    [
        (faults.UNAUTHORIZED, (), "put it into the variable CADENZA_API_KEY"),
        (faults.only_models("tiny"), ("--model", "x"), "has no model 'x'; it has: tiny"),
        (faults.TOO_LONG, (), "maximum context length is 2048"),
        (faults.OVERLOADED, (), "HTTP 503: The server is overloaded"),
    ],
    ids=["401", "404 model", "context", "503"],
)
def test_a_refusal_before_the_run(
    behaviour: faults.Behaviour, flags: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    with FaultServer(behaviour) as server:
        done = sweep(server.url, tmp_path, *flags)
    assert done.returncode == 3
    assert sentence in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (faults.stream(faults.Answer(done=False, finish=False)), "truncated"),
        (faults.broken_json(), "malformed"),
        (faults.stall(30, after=2), "timeout_stall"),
        (faults.stall(30), "timeout_first_token"),
        (faults.reset("mid-stream"), "connection_lost"),
        (faults.close_mid_chunk(), "connection_lost"),
        (faults.error_event(), "stream_error"),
        (faults.SERVER_ERROR, "http_error"),
    ],
    ids=["no DONE", "broken JSON", "stall", "no token", "reset", "closed", "error event", "500"],
)
def test_a_server_that_fails_in_the_run_is_data_and_exit_code_1(
    fault: faults.Behaviour, outcome: str, tmp_path: Path
) -> None:
    with FaultServer(after_the_trial(fault)) as server:
        done = sweep(server.url, tmp_path, "--requests", "4", *settings(tmp_path, IMPATIENT))
    assert done.returncode == 1, done.stderr
    point = only_point(done)
    assert point["verdict"] == "INVALID"
    assert point["requests"] == {
        "planned": 4,
        "sent": 4,
        "ok": 0,
        "failed": 4,
        "dropped": 0,
        "outcomes": {outcome: 4},
    }


def test_finish_reason_without_done_is_an_answer(tmp_path: Path) -> None:
    with FaultServer(faults.stream(faults.Answer(done=False))) as server:
        done = sweep(server.url, tmp_path)
    assert done.returncode == 0, done.stderr
    # 4 of warm-up, 12 measured, and of the cooldown as many as a free slot sends meanwhile.
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()[1:]]
    assert sum(record["phase"] != "cooldown" for record in records) == 16
    assert {(record["outcome"], record["detail"]) for record in records} == {("ok", "no [DONE]")}
    notes = only_point(done)["notes"]
    assert isinstance(notes, list)
    assert notes[0] == f"{len(records)} answers: no [DONE]"


def test_an_unreadable_dataset(tmp_path: Path) -> None:
    with FaultServer() as server:
        done = sweep(server.url, tmp_path, "--prompts", "sharegpt:nowhere.json")
    assert done.returncode == 2
    assert "nowhere.json" in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_out_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with FaultServer() as server:
        done = sweep(server.url, tmp_path)
    assert done.returncode == 2
    assert "is not empty, and nothing is overwritten" in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


def test_a_full_disk_keeps_and_reports_what_was_measured(tmp_path: Path) -> None:
    with FaultServer() as server:
        done = cadenza(
            *(
                "sweep",
                "--url",
                server.url,
                "-c",
                "1",
                "--requests",
                "200",
                "--output-tokens",
                "4",
                "--out",
                "run",
                "--json",
            ),
            cwd=tmp_path,
            file_bytes=20_000,
        )
    assert done.returncode == 1
    assert "What was measured until now is kept there; make room and run again" in done.stderr
    measured = only_point(done)["requests"]
    assert isinstance(measured, dict)
    assert 10 < measured["ok"] < 200
    shown = cadenza("show", "run", "--json", cwd=tmp_path)
    kept = json.loads(shown.stdout)["points"][0]["requests"]
    assert measured["ok"] - 1 <= kept["ok"] <= measured["ok"]


def test_a_reader_that_goes_away_is_silence(tmp_path: Path) -> None:
    command = f"{sys.executable} -m cadenza engine --help | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert done.stderr == ""


def test_keys_reach_the_server_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret-key")
    with FaultServer() as server:
        done = sweep(server.url, tmp_path, "--api-key-file", "key", "--header", "X-Team: s3cret-team")
    assert done.returncode == 0, done.stderr
    assert {received.headers.get("authorization") for received in server.requests} == {"Bearer s3cret-key"}
    assert {received.headers.get("x-team") for received in server.requests} == {"s3cret-team"}
    written = "".join(path.read_text() for path in (tmp_path / "run").iterdir()) + done.stdout + done.stderr
    assert "s3cret" not in written
    assert "X-Team" in written


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    with FaultServer(context=context) as server:
        refused = sweep(server.url, tmp_path)
        assert refused.returncode == 3
        assert "certificate" in refused.stderr
        done = sweep(server.url, tmp_path, *settings(tmp_path, "verify_tls = false"))
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["requests"]["outcomes"] == {"ok": 12}


def test_several_urls_share_the_load(tmp_path: Path) -> None:
    with FaultServer() as one, FaultServer() as two:
        done = sweep(one.url, tmp_path, "--url", two.url)
    assert done.returncode == 0, done.stderr
    posts = [sum(received.is_completion for received in server.requests) for server in (one, two)]
    in_turn = [posts[0] - 1, posts[1]]  # less the trial: 4 of warm-up and 12 measured, and the cooldown's
    assert sum(in_turn) >= 16
    assert 0 <= in_turn[0] - in_turn[1] <= 1


def test_models_are_listed_where_there_are_several(tmp_path: Path) -> None:
    with FaultServer(models=("a", "b")) as server:
        done = sweep(server.url, tmp_path)
        assert done.returncode == 2
        assert "choose with --model NAME, or --model all: a, b" in done.stderr
        done = sweep(server.url, tmp_path, "--model", "all")
    assert [point["model"] for point in json.loads(done.stdout)["points"]] == ["a", "b"]


def test_a_probe_in_one_screen(tmp_path: Path) -> None:
    with FaultServer(routes={"/version": faults.http_error(200, b'{"version":"9.9"}')}) as server:
        done = cadenza("probe", server.url, cwd=tmp_path)
    assert done.returncode == 0
    assert "vLLM 9.9" in done.stdout
    assert "token counts are the server's own" in done.stdout
    assert "one token an event" in done.stdout
