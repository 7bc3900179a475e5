"""`HostCollector` over small /proc trees whose shares and sizes follow from man 5 proc."""

import errno
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Collected, Missing
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.host import HostCollector

STAT = """cpu  100 20 50 1000 30 4 6 10 15 5
cpu0 50 10 25 500 15 2 3 5 0 0
cpu1 50 10 25 500 15 2 3 5 0 0
intr 12345 0 0 0
ctxt 99
"""
MEMINFO = """MemTotal:       65536000 kB
MemFree:         1000000 kB
MemAvailable:   40000000 kB
SwapTotal:       8000000 kB
SwapFree:        7000000 kB
HugePages_Total:       0
"""
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes  packets errs drop fifo colls carrier compressed
    lo: 1000       10    0    0    0     0          0         0     1000      10    0    0    0     0       0          0
eth0.7:18446744073709551615 20 0 0 0 0 0 0 3000 30 0 0 0 0 0 0
"""
CPU = "cadenza_host_cpu_ratio"


def tree(root: Path, stat: str | bytes = STAT, meminfo: str | bytes = MEMINFO, net: str | bytes = NET) -> Path:
    (root / "proc" / "net").mkdir(parents=True, exist_ok=True)
    for name, text in (("stat", stat), ("meminfo", meminfo), ("net/dev", net)):
        (root / "proc" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def values(collected: Collected) -> dict[str, float]:
    """By family and the value of its one label, in the families' own order of labels."""
    for reading in collected.readings:
        assert tuple(name for name, _ in reading.labels) == FAMILIES[reading.name].labels
    return {
        " ".join([reading.name, *(value for _, value in reading.labels)]): reading.value
        for reading in collected.readings
    }


def test_sizes_and_counters(tmp_path: Path) -> None:
    collected = HostCollector(tree(tmp_path)).collect()
    assert values(collected) == {
        "cadenza_host_cores": 2,
        "cadenza_host_memory_size_bytes": 65_536_000 * 1024,
        "cadenza_host_memory_available_bytes": 40_000_000 * 1024,
        "cadenza_host_swap_used_bytes": 1_000_000 * 1024,
        "cadenza_host_network_received_bytes_total lo": 1000,
        "cadenza_host_network_sent_bytes_total lo": 1000,
        "cadenza_host_network_received_bytes_total eth0.7": 2.0**64,
        "cadenza_host_network_sent_bytes_total eth0.7": 3000,
    }
    assert collected.missing == []


def ratios(collected: Collected) -> dict[str, float]:
    return {name.removeprefix(CPU + " "): value for name, value in values(collected).items() if name.startswith(CPU)}


def looks(root: Path, *lines: str) -> list[dict[str, float]]:
    host = HostCollector(root)
    found = []
    for line in lines:
        tree(root, line + "\ncpu0 1 1 1 1\n")
        found.append(ratios(host.collect()))
    return found


def test_shares_are_of_the_time_between_two_looks(tmp_path: Path) -> None:
    """40 user, 10 nice, 20 system, 300 idle, 60 wait, 5 irq, 15 softirq, 50 steal: 500 ticks; a guest's are user's."""
    first, second = looks(tmp_path, "cpu  100 20 50 1000 30 4 6 10 15 5", "cpu  140 30 70 1300 90 9 21 60 55 15")
    assert first == {}
    assert second == pytest.approx({"user": 0.1, "system": 0.08, "iowait": 0.12, "steal": 0.1, "idle": 0.6})


def test_a_kernel_that_counts_no_steal_tells_none(tmp_path: Path) -> None:
    assert looks(tmp_path, "cpu  0 0 0 0", "cpu  1 0 0 3")[1] == {"user": 0.25, "system": 0, "idle": 0.75}


def test_iowait_that_falls_counts_as_none(tmp_path: Path) -> None:
    assert looks(tmp_path, "cpu  0 0 0 0 9 0 0 0", "cpu  1 0 0 3 7 0 0 0")[1]["iowait"] == 0.0


def test_without_a_tick_in_between_there_is_no_share_and_the_time_goes_on(tmp_path: Path) -> None:
    found = looks(tmp_path, "cpu  0 0 0 0", "cpu  0 0 0 0", "cpu  3 0 0 1")
    assert found == [{}, {}, {"user": 0.75, "system": 0, "idle": 0.25}]


def test_a_malformed_look_begins_anew(tmp_path: Path) -> None:
    host = HostCollector(tree(tmp_path))
    host.collect()
    tree(tmp_path, "cpu  1 x 3 4\ncpu0 1 1 1 1\n")
    assert Missing(CPU, "", "malformed") in host.collect().missing
    tree(tmp_path)
    assert (ratios(host.collect()), host.collect().missing) == ({}, [])


def test_what_is_not_there_is_absent_with_its_reason(tmp_path: Path) -> None:
    missing = HostCollector(tmp_path).collect()
    assert missing.readings == []
    assert {gap.name for gap in missing.missing} == {name for name in FAMILIES if name.startswith("cadenza_host_")}
    assert {gap.reason for gap in missing.missing} == {"absent"}


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"meminfo": MEMINFO.replace("MemAvailable", "Other")}, "cadenza_host_memory_available_bytes", "absent"),
        ({"meminfo": MEMINFO.replace("65536000", "many")}, "cadenza_host_memory_size_bytes", "malformed"),
        ({"meminfo": MEMINFO.replace("65536000 kB", "65536000 MB")}, "cadenza_host_memory_size_bytes", "malformed"),
        ({"meminfo": MEMINFO.replace(" 7000000", " 9000000")}, "cadenza_host_swap_used_bytes", "out_of_range"),
        ({"net": "Inter-|\n face |\n"}, "cadenza_host_network_sent_bytes_total", "malformed"),
        ({"stat": "ctxt 9\n"}, "cadenza_host_cores", "malformed"),
        ({"stat": ""}, CPU, "malformed"),
    ],
)
def test_a_value_that_is_none(tmp_path: Path, change: dict[str, str], name: str, reason: str) -> None:
    collected = HostCollector(tree(tmp_path, **change)).collect()
    assert [gap for gap in collected.missing if gap.name == name] == [Missing(name, "", reason)]  # type: ignore[arg-type]
    assert name not in values(collected)


def test_more_memory_than_a_machine_can_have_is_out_of_range(tmp_path: Path) -> None:
    most = MEMINFO.replace("65536000 kB", f"{1 << 50} kB")
    assert values(HostCollector(tree(tmp_path, meminfo=most)).collect())["cadenza_host_memory_size_bytes"] == 2.0**60
    more = MEMINFO.replace("65536000 kB", f"{(1 << 50) + 1} kB")
    collected = HostCollector(tree(tmp_path, meminfo=more)).collect()
    assert Missing("cadenza_host_memory_size_bytes", "", "out_of_range") in collected.missing


@pytest.mark.parametrize("name", ["sixteen-letters-", "e\x1bth0", "a b\rc"])
def test_what_is_no_name_of_a_device_is_passed_over(tmp_path: Path, name: str) -> None:
    collected = HostCollector(tree(tmp_path, net=NET.replace("eth0.7", name))).collect()
    told = {dict(reading.labels)["device"] for reading in collected.readings if "network" in reading.name}
    assert told == {"lo"}


def test_a_device_that_is_listed_twice_is_told_once(tmp_path: Path) -> None:
    """The kernel lists each once; a table that is read while devices come and go may not."""
    collected = HostCollector(tree(tmp_path, net=NET + NET.replace(" 1000 ", " 7777 "))).collect()
    told = [reading for reading in collected.readings if reading.name == "cadenza_host_network_received_bytes_total"]
    assert [(dict(reading.labels)["device"], reading.value) for reading in told] == [
        ("lo", 1000.0),
        ("eth0.7", 2.0**64),
    ]


def test_a_file_that_may_not_be_read_is_denied(tmp_path: Path) -> None:
    host = HostCollector(tree(tmp_path))
    with mock.patch.object(os, "open", side_effect=PermissionError(errno.EACCES, "")):
        assert {gap.reason for gap in host.collect().missing} == {"denied"}


def test_a_large_machine(tmp_path: Path) -> None:
    """512 cores and 300 devices are 60 kB of the one and more than a page of the other; 256 devices are told."""
    cores = "".join(f"cpu{n} {'1234567 ' * 10}\n" for n in range(512))
    devices = "".join(f"veth{n}: 1 {'0 ' * 7}2 {'0 ' * 7}\n" for n in range(300))
    found = values(HostCollector(tree(tmp_path, "cpu  1 1 1 1\n" + cores, net="a|\nb|\n" + devices)).collect())
    assert found["cadenza_host_cores"] == 512
    assert found["cadenza_host_network_sent_bytes_total veth255"] == 2
    assert "cadenza_host_network_sent_bytes_total veth256" not in found


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 150))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, more: bytes, at: int) -> None:
    root = tmp_path_factory.mktemp("host")
    host = HostCollector(root)
    for piece in (data, more):
        texts = [text.encode()[:at] + piece + text.encode()[at + len(piece) :] for text in (STAT, MEMINFO, NET)]
        tree(root, *texts)
        found = values(host.collect())
        assert all(value >= 0 for value in found.values())
        shares = [value for name, value in found.items() if name.startswith(CPU)]
        assert not shares or sum(shares) == pytest.approx(1)


def test_this_machine() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc here")
    collected = HostCollector(Path("/")).collect()
    found = values(collected)
    assert found["cadenza_host_cores"] >= 1
    assert 0 < found["cadenza_host_memory_available_bytes"] <= found["cadenza_host_memory_size_bytes"]
