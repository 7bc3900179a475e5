"""The JSON in a text, and the runner: scripted children in virtual time, then real ones that hang, spew and lie."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.clock import NS_PER_S, ManualClock
from cadenza.readings import Collected, Missing, Reading, Reason
from cadenza.telemetry.cards import amd_smi, rocm_smi
from cadenza.telemetry.cards.smi import (
    OUTPUT_BYTES,
    Finished,
    Parse,
    Process,
    SmiCollector,
    TextCollector,
    Tool,
    find_roots,
    label,
    number,
    pci_address,
    scaled,
    sniff,
    unique_id,
)

DATA = Path(__file__).parents[2] / "data/telemetry"
PARSERS: dict[Tool, Parse] = {"rocm_smi": rocm_smi.parse, "amd_smi": amd_smi.parse}


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ('WARN x\n{"a": 1}\ntrailing {"b": 2}', [{"a": 1}]),
        ('[{"a": 1}]\n{"b": 2}', [[{"a": 1}], {"b": 2}]),
        ('{"a": 1}{"b": 2}', [{"a": 1}]),
        ('[drm] no\n[1.5] no\n["a"]\n{"b": 2}', [{"b": 2}]),
        ("[]", [[]]),
        ('{"a": {\n"b": 1}}', [{"a": {"b": 1}}]),
        ("", "failed"),
        ("[drm] a kernel line", "failed"),
        (' {"indented": 1}', "failed"),
        ('{"a": 1', "malformed"),
        ('[{"a": 1}', "malformed"),
        ('{"a": ' + "9" * 5000 + "}", "malformed"),
        ('{"a":' * 100_000, "malformed"),
        ("[" * 100_000, "failed"),
    ],
)
def test_roots_begin_a_line(text: str, roots: object) -> None:
    assert find_roots(text) == roots


def test_hostile_texts_take_no_longer_than_their_length_allows() -> None:
    began = time.process_time()
    for text in ('{"a":[' + "1," * 50_000 + "\n") * 20, "{\n" * 1_000_000, '[{"a":1},\n' * 200_000, "[[\n" * 500_000:
        assert find_roots(text) in ("malformed", "failed")
    assert time.process_time() - began < 5.0


def test_whose_text_it_is() -> None:
    for tool in ("rocm_smi", "amd_smi"):
        for path in sorted((DATA / tool).glob("*.json")):
            assert sniff(path.read_text(encoding="utf-8")) == tool, path.name
    assert sniff((DATA / "rocm_smi/csv_use_mem_temp.csv").read_text(encoding="utf-8")) == "rocm_smi"
    assert sniff((DATA / "rocm_smi/warning_before_json.stdout.txt").read_text(encoding="utf-8")) == "rocm_smi"
    for text in ("", "Driver not loaded", "{}", "[]", '{"cards": 1}', '{"card0"', "[1, 2]"):
        assert sniff(text) is None


ANY_JSON = st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(st.text() | ANY_JSON.map(json.dumps))
def test_any_text_can_be_sniffed(text: str) -> None:
    assert sniff(text) in ("rocm_smi", "amd_smi", None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[("36.0", 36.0), (" 7 ", 7.0), (5, 5.0), (0.25, 0.25), ("-5", -5.0), ("0", 0.0)],
        *[(None, "failed"), ("None", "failed"), ("", "not_supported"), ("N/A (Secondary die)", "not_supported")],
        *[("Not supported on the given system", "not_supported"), ("4294967295", "not_supported")],
        *[(2**64 - 1, "not_supported"), ("inf", "malformed"), ("1e5", "malformed"), ("0x10", "malformed")],
        *[("1_000", "malformed"), ("٣", "malformed")],
        *[(True, "malformed"), ([1], "malformed"), ({}, "malformed"), ("9" * 41, "malformed")],
        *[(float("nan"), "out_of_range"), (float("inf"), "out_of_range"), (10**400, "out_of_range")],
    ],
)
def test_numbers(value: object, expected: object) -> None:
    assert number(value) == expected


def test_percentages_are_the_nearest_ratio() -> None:
    assert [scaled(float(per_cent), 0.01) for per_cent in range(101)] == [n / 100 for n in range(101)]
    assert scaled(1725.0, 1e6) == 1_725_000_000.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        *[("0000:43:00.0", "0000:43:00.0"), ("0000:C4:00.0", "0000:c4:00.0"), ("00000000:65:00.0", "0000:65:00.0")],
        *[("00010000:65:00.1", "10000:65:00.1"), ("N/A", None), ("43:00.0", None), ("0000:43:00.9", None), (3, None)],
    ],
)
def test_addresses(text: object, address: str | None) -> None:
    assert pci_address(text) == address


@pytest.mark.parametrize(
    ("value", "digits"),
    [
        ("0x1A2B3C4D5E6F7081", "1a2b3c4d5e6f7081"),
        ("0123456789ab", "0123456789ab"),
        ("N/A", ""),
        ("0x0", ""),  # of a Radeon, which has none
        ("0x0000000000000000", ""),
        (0, ""),
        (None, ""),
    ],
)
def test_unique_ids(value: object, digits: str) -> None:
    assert unique_id(value) == digits


def test_labels() -> None:
    assert [label(value) for value in ("gfx906", "N/A", "None", None, 7, True, "a\nb", ["x"])] == [
        *("gfx906", "", "", "", "7", "", "a b", ""),
    ]


class Scripted:
    """A child that answers after `takes_s`, and goes `dies_s` after it was killed; None: never."""

    def __init__(self, clock: ManualClock, finished: Finished, takes_s: float | None, dies_s: float | None) -> None:
        self._clock = clock
        self._finished = finished
        self._at_ns = None if takes_s is None else clock.now_ns() + round(takes_s * NS_PER_S)
        self._dies_s = dies_s
        self.kills = 0

    def wait(self, timeout_s: float) -> Finished | None:
        until_ns = self._clock.now_ns() + round(timeout_s * NS_PER_S)
        if self._at_ns is not None and self._at_ns <= until_ns:
            self._clock.advance_to(self._at_ns)
            return self._finished
        self._clock.advance_to(until_ns)
        return None

    def kill(self) -> None:
        self.kills += 1
        self._finished = Finished(-9, b"", b"")
        self._at_ns = None if self._dies_s is None else self._clock.now_ns() + round(self._dies_s * NS_PER_S)


class Bench:
    """A collector of scripted children: `answers` are (stdout, or an error to launch with; seconds; seconds to die)."""

    def __init__(self, *answers: object, facts: bool = False, every_s: float = 5.0) -> None:
        self.clock = ManualClock()
        self.commands: list[tuple[str, ...]] = []
        self.children: list[Scripted] = []
        self._answers = list(answers)
        self.collector = SmiCollector(
            ("smi", "metric"),
            amd_smi.parse if facts else rocm_smi.parse,
            name="rocm_smi",
            facts=("smi", "static") if facts else None,
            timeout_s=10.0,
            every_s=every_s,
            clock=self.clock,
            launch=self.launch,
        )

    def launch(self, command: Sequence[str]) -> Scripted:
        self.commands.append(tuple(command))
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        finished, takes_s, dies_s = answer if isinstance(answer, tuple) else (answer, 1.0, 0.0)
        if isinstance(finished, str):
            finished = Finished(0, finished.encode(), b"")
        self.children.append(Scripted(self.clock, finished, takes_s, dies_s))
        return self.children[-1]

    def pass_s(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_ns() + round(seconds * NS_PER_S))


def card(busy: int) -> str:
    return json.dumps({"card0": {"GPU use (%)": str(busy)}})


def busy(collected: Collected) -> list[float]:
    return [value for name, _, value in collected.readings if name == "gpu_busy_ratio"]


def failure(reason: Reason, name: str = "rocm_smi") -> Collected:
    return Collected([], [Missing(name, "", reason)])


def test_between_two_runs_the_last_one_is_told() -> None:
    bench = Bench(card(10), card(20))
    assert busy(bench.collector.collect()) == [0.1]
    bench.pass_s(4.9)
    assert busy(bench.collector.collect()) == [0.1]
    assert len(bench.commands) == 1
    bench.pass_s(0.2)
    assert busy(bench.collector.collect()) == [0.2]


def test_a_child_that_cannot_be_killed_is_waited_for_once_and_is_the_only_one() -> None:
    bench = Bench((card(10), None, None), card(20))
    assert bench.collector.collect() == failure("timeout")
    assert bench.clock.now_ns() == 10 * NS_PER_S
    assert bench.children[0].kills == 1
    for seconds in range(3600):
        before_ns = bench.clock.now_ns()
        assert bench.collector.collect() == failure("timeout")
        assert bench.clock.now_ns() == before_ns  # the caller does not wait
        assert bench.collector.stuck_s == 10 + seconds
        bench.pass_s(1)
    assert len(bench.commands) == 1


def test_the_next_child_is_started_when_the_last_is_gone() -> None:
    bench = Bench((card(10), None, 30.0), card(20))
    bench.collector.collect()
    bench.pass_s(29.9)
    assert bench.collector.collect() == failure("timeout")
    stuck_s = [bench.collector.stuck_s]
    bench.pass_s(0.2)
    assert busy(bench.collector.collect()) == [0.2]
    assert [*stuck_s, bench.collector.stuck_s] == [39.9, None]
    assert len(bench.commands) == 2


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (Finished(0, b"", b"cat: x\nERROR:root:Driver not initialized"), "failed", "ERROR:root:Driver not initialized"),
        (Finished(8, b"ERROR: ROCm SMI returned 8", b""), "failed", "ERROR: ROCm SMI returned 8"),
        (Finished(0, b"\xff\xfe garbage", b""), "failed", ""),
        (Finished(0, b'{"card0": {"GPU', b""), "malformed", ""),
        (Finished(0, b'{"card0": {}}', b"", whole=False), "malformed", ""),
        (Finished(1, b"", b"open: /dev/kfd: Permission denied"), "denied", "open: /dev/kfd: Permission denied"),
        (Finished(1, b"", b"\x1b[31mno\x1b[0m"), "failed", "[31mno [0m"),
        (FileNotFoundError(), "absent", ""),
        (PermissionError(), "denied", ""),
        (OSError(12, "Cannot allocate memory"), "failed", ""),
    ],
)
def test_failures_have_their_reason_and_the_last_words(answer: object, reason: Reason, said: str) -> None:
    bench = Bench(answer if isinstance(answer, OSError) else (answer, 1.0, 0.0))
    assert bench.collector.collect() == failure(reason)
    assert bench.collector.message == said


def test_an_exit_code_does_not_spoil_what_was_said() -> None:
    bench = Bench((Finished(2, card(30).encode(), b"WARNING: low-power state"), 1.0, 0.0))
    assert busy(bench.collector.collect()) == [0.3]
    assert bench.collector.message == "WARNING: low-power state"


def test_a_card_that_is_gone_is_down_and_comes_back() -> None:
    both = json.dumps({f"card{n}": {"GPU use (%)": "5"} for n in range(2)})
    mute = json.dumps({"card0": {"GPU use (%)": "5"}, "card1": {"GPU use (%)": "N/A"}})
    bench = Bench(card(5), both, card(5), mute, "", both, every_s=0)
    ups = [
        {labels[0][1]: value for name, labels, value in bench.collector.collect().readings if name == "gpu_up"}
        for _ in range(6)
    ]
    two = {"card0": 1, "card1": 1}
    assert ups == [{"card0": 1}, two, {"card0": 1, "card1": 0}, {"card0": 1}, {}, two]


STATIC = json.dumps([{"gpu": 0, "bus": {"bdf": "0000:0c:00.0"}, "limit": {"socket_power": 500}}])
METRIC = json.dumps([{"gpu": 0, "usage": {"gfx_activity": 50}}])
AMD = ("vendor", "amd")


def test_facts_are_asked_for_once_and_again_after_ten_minutes() -> None:
    bench = Bench(STATIC, METRIC, METRIC, STATIC, METRIC, facts=True)
    for wait_s in (0, 6, 600):
        bench.pass_s(wait_s)
        assert Reading("gpu_busy_ratio", (("gpu", "0000:0c:00.0"), AMD), 0.5) in bench.collector.collect().readings
    static, metric = ("smi", "static"), ("smi", "metric")
    assert bench.commands == [static, metric, metric, static, metric]


def test_facts_alone_are_no_answer() -> None:
    bench = Bench(STATIC, "", '{"error": "x", "code": -4}', facts=True, every_s=0)
    for _ in range(2):
        collected = bench.collector.collect()
        assert collected.readings == []
        assert collected.missing


def test_facts_that_hang_are_a_timeout_too() -> None:
    bench = Bench((STATIC, None, None), facts=True)
    assert bench.collector.collect() == failure("timeout")
    assert bench.collector.collect() == failure("timeout")
    assert len(bench.commands) == 1


def test_which_tool_is_installed() -> None:
    amd = amd_smi.collector(lambda name: "/usr/bin/amd-smi" if name == "amd-smi" else None)
    rocm = rocm_smi.collector(lambda name: name if name == "/opt/rocm/bin/rocm-smi" else None)
    assert amd is not None
    assert rocm is not None
    assert (amd.name, rocm.name) == ("amd_smi", "rocm_smi")
    assert amd_smi.collector(lambda _: None) is None
    assert rocm_smi.collector(lambda _: None) is None


def test_a_file_is_read_by_its_tools_parser(tmp_path: Path) -> None:
    collector = TextCollector(tmp_path / "smi.json", PARSERS)
    assert collector.collect() == failure("absent", "smi")
    (tmp_path / "smi.json").write_text("", encoding="utf-8")
    assert collector.collect() == failure("failed", "smi")
    (tmp_path / "smi.json").write_text("what?", encoding="utf-8")
    assert collector.collect() == failure("malformed", "smi")
    for text, gpu in ((card(50), "card0"), (METRIC, "gpu0")):
        (tmp_path / "smi.json").write_text(text, encoding="utf-8")
        assert Reading("gpu_busy_ratio", (("gpu", gpu), AMD), 0.5) in collector.collect().readings


def run(source: str, timeout_s: float = 20.0) -> tuple[SmiCollector, Collected, float]:
    """A collector whose tool is this Python source, its first round, and how long that took in seconds."""
    collector = SmiCollector((sys.executable, "-c", source), rocm_smi.parse, name="rocm_smi", timeout_s=timeout_s)
    began = time.monotonic()
    return collector, collector.collect(), time.monotonic() - began


@pytest.mark.slow
def test_a_real_child() -> None:
    source = f"import sys; print('WARN', {card(70)!r}, sep='\\n'); print('low-power', file=sys.stderr)"
    collector, collected, _ = run(source)
    assert busy(collected) == [0.7]
    assert collector.message == "low-power"


@pytest.mark.slow
@pytest.mark.parametrize("prelude", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_a_real_child_that_hangs_is_killed(prelude: str) -> None:
    collector, collected, took_s = run(f"{prelude}import time; time.sleep(60)", timeout_s=1.0)
    assert collected == failure("timeout")
    assert 1.0 <= took_s < 5.0
    child = collector._child
    assert child is not None
    finished = child.wait(10.0)
    assert finished is not None
    assert finished.code == -9


@pytest.mark.slow
def test_a_real_child_that_spews_is_cut_off() -> None:
    source = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    collector, collected, _ = run(source)
    assert collected == failure("malformed")
    assert collector.stuck_s is None


@pytest.mark.slow
def test_garbage_and_silence_of_a_real_child() -> None:
    assert run("import os; os.write(1, bytes(range(256)) * 99)")[1] == failure("failed")
    assert run("raise SystemExit(3)")[1] == failure("failed")
    collector = SmiCollector(("/nonexistent/rocm-smi",), rocm_smi.parse, name="rocm_smi")
    assert collector.collect() == failure("absent")


@pytest.mark.slow
def test_a_grandchild_that_keeps_the_pipes_does_not_keep_the_answer() -> None:
    inner = "import time; time.sleep(60)"
    source = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)\n"
        f"print({card(40)!r}); print(child.pid, file=sys.stderr)"
    )
    collector, collected, took_s = run(source)
    os.kill(int(collector.message), 9)
    assert busy(collected) == [0.4]
    assert took_s < 10.0


@pytest.mark.slow
def test_much_output_on_both_pipes_is_read_whole() -> None:
    size = OUTPUT_BYTES // 2
    source = f"import os\nfor _ in range({size // 4096}): os.write(1, b'a' * 4096); os.write(2, b'b' * 4096)"
    finished = Process((sys.executable, "-c", source)).wait(20.0)
    assert finished == Finished(0, b"a" * size, b"b" * size)
