"""The engine as a child: up, serving, and gone with whoever started it."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from cadenza.engine.api import child
from cadenza.errors import CadenzaError

pytestmark = pytest.mark.slow


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_serves_without_the_callers_key_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_ENGINE_API_KEY", "for somebody else")
    with child.start("mi50-rx6900xt", speed=50) as engine:
        with urllib.request.urlopen(f"{engine.url}/v1/models", timeout=10) as answer:
            assert len(json.load(answer)["data"]) == 3
        assert engine.process.poll() is None
    assert engine.process.returncode == 0


def test_it_ends_when_its_input_does() -> None:
    with child.start("mi50-rx6900xt") as engine:
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.process.wait(5) == 0


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks at processes through /proc")
def test_it_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from cadenza.engine.api import child\n"
            "with child.start('mi50-rx6900xt') as engine:\n"
            "    print(engine.process.pid, flush=True)\n"
            "    time.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_one_that_cannot_start_says_why() -> None:
    with pytest.raises(CadenzaError, match=r"did not come up.*no engine profile is called 'nope'"), child.start("nope"):
        pass


def test_one_that_hangs_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_LAUNCH", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(child, "_UP_WITHIN_S", 0.3)
    with pytest.raises(CadenzaError, match="no error message"), child.start("mi50-rx6900xt"):
        pass


def test_its_timing_law_is_passed_on_and_left_to_the_engine_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    echo = "import json, sys; print(json.dumps({'url': ' '.join(sys.argv[1:])}), flush=True); sys.stdin.read()"
    monkeypatch.setattr(child, "_LAUNCH", (sys.executable, "-c", echo))
    with child.start("p", speed=2.0) as plain, child.start("p", 2.0, "calibrated:D") as timed:
        assert plain.url == "engine p --port 0 --speed 2.0 --exit-with-parent"
        assert timed.url == f"{plain.url} --timing calibrated:D"
