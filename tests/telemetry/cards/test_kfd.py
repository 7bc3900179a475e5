"""The topology's nodes as cards, and what processes hold on them."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Missing, Reason
from cadenza.telemetry.cards import kfd
from cadenza.telemetry.cards.kfd import (
    ComputeProcess,
    Node,
    Topology,
    gfx_name,
    parse_properties,
    pci_address,
    read_processes,
)
from cadenza.telemetry.findings import Findings
from cadenza.telemetry.root import UnreadableError

SYSFS = Path(__file__).parents[2] / "data/sysfs"
PARTITIONED = Path(__file__).parents[2] / "data/telemetry/sysfs/mi300x_cpx"
MIXED = [
    Node(1, "0000:03:00.0", 51887, "gfx906", 34342961152),
    Node(2, "0000:43:00.0", 24513, "gfx1030", 17163091968),
]


def stand(tree: Path, root: Path) -> Path:
    shutil.copytree(tree, root / "sys")
    return root


@pytest.mark.parametrize(
    ("version", "gfx"),
    [
        *((90006, "gfx906"), (90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (100300, "gfx1030")),
        *((110000, "gfx1100"), (120001, "gfx1201"), (90008, "gfx908"), (0, ""), (10**9, "")),
    ],
)
def test_gfx_names(version: int, gfx: str) -> None:
    assert gfx_name(version) == gfx


@pytest.mark.parametrize(
    ("location", "domain", "address"),
    [
        *((0x0300, 0, "0000:03:00.0"), (0x4300, 0, "0000:43:00.0"), (0xC3F9, 1, "0001:c3:1f.1")),
        (7 << 28 | 0x0C00, 0, "0000:0c:00.0"),
    ],
)
def test_pci_addresses(location: int, domain: int, address: str) -> None:
    assert pci_address(location, domain) == address


def test_the_mixed_box(tmp_path: Path) -> None:
    assert Topology(stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)).read() == (MIXED, [])


def test_partitions_are_nodes_of_one_card(tmp_path: Path) -> None:
    nodes, missing = Topology(stand(PARTITIONED, tmp_path)).read()
    assert nodes == [Node(n, "0000:0c:00.0", 40000 + n, "gfx942", 25769803776) for n in range(1, 9)]
    assert missing == []


def test_no_topology_is_no_nodes(tmp_path: Path) -> None:
    assert Topology(tmp_path).read() == ([], [])


def test_older_kernels_without_a_domain(tmp_path: Path) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    properties = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
    properties.write_text("simd_count 240\nlocation_id 768\n", encoding="ascii")
    assert Topology(root).read()[0][0] == Node(1, "0000:03:00.0", 51887, "", 34342961152)


def test_it_is_read_again_when_its_generation_changes(tmp_path: Path) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    topology, folder = Topology(root), root / "sys/class/kfd/kfd/topology"
    assert len(topology.read()[0]) == 2
    shutil.rmtree(folder / "nodes/2")
    assert len(topology.read()[0]) == 2
    (folder / "generation_id").write_text("3\n", encoding="ascii")
    assert topology.read()[0] == MIXED[:1]
    (folder / "generation_id").unlink()
    shutil.rmtree(folder / "nodes/1")
    assert topology.read()[0] == []


def test_a_node_that_the_cgroup_hides_is_denied_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path))

    def refuse(path: Path) -> str:
        if path.parent.name == "2":
            raise UnreadableError("asleep")  # EPERM
        return path.read_text(encoding="ascii")

    with monkeypatch.context() as patched:
        patched.setattr(kfd, "read_text", refuse)
        assert topology.read() == (MIXED[:1], [Missing("gpu_info", "", "denied")])
    assert topology.read() == (MIXED, [])


@pytest.mark.parametrize(("text", "reason"), [("simd_count 240\n", "malformed"), ("", "not_supported")])
def test_a_node_that_does_not_say_where_it_is(tmp_path: Path, text: str, reason: Reason) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    (root / "sys/class/kfd/kfd/topology/nodes/1/properties").write_text(text, encoding="ascii")
    nodes, missing = Topology(root).read()
    assert nodes == MIXED[1:]
    assert missing == [Missing("gpu_info", "", reason)]


def test_processes(tmp_path: Path) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    assert list(read_processes(root, frozenset({51887, 24513}))) == [
        ComputeProcess("4321", 24513, 14763950080, 0.0),
        ComputeProcess("4321", 51887, 30950064128, 1.204113),
        ComputeProcess("5000", 51887, 0, None),
    ]
    assert list(read_processes(root, frozenset({24513}))) == [ComputeProcess("4321", 24513, 14763950080, 0.0)]


def test_what_is_no_process_or_no_number_is_left_out(tmp_path: Path) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    folder = root / "sys/class/kfd/kfd/proc"
    (folder / "self").mkdir()
    (folder / "4321/vram_51887").write_text("N/A\n", encoding="ascii")
    (folder / "4321/sdma_24513").write_text("-5\n", encoding="ascii")
    assert list(read_processes(root, frozenset({51887, 24513}))) == [
        ComputeProcess("4321", 24513, 14763950080, None),
        ComputeProcess("4321", 51887, None, 1.204113),
        ComputeProcess("5000", 51887, 0, None),
    ]


def test_occupancy_is_never_read(tmp_path: Path) -> None:
    root = stand(SYSFS / "mixed_mi50_rx6900xt", tmp_path)
    before = list(read_processes(root, frozenset({51887})))
    sentinel = root / "sys/class/kfd/kfd/proc/5000/stats_51887/cu_occupancy"
    assert sentinel.read_text(encoding="ascii").strip() == str(2**32 - 1)
    sentinel.unlink()
    assert list(read_processes(root, frozenset({51887}))) == before


def test_a_crowd_of_processes_is_cut(tmp_path: Path) -> None:
    for pid in range(1, 1100):
        folder = tmp_path / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        (folder / "vram_7").write_text("1\n", encoding="ascii")
    pids = [process.pid for process in read_processes(tmp_path, frozenset({7}))]
    assert pids == [str(pid) for pid in range(1, 1025)]


def test_what_a_process_has_on_partitions_of_a_card_is_added_up(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/kfd/kfd/proc/77"
    folder.mkdir(parents=True)
    for gpu_id, vram, sdma_us in ((1, 100, 1_000_000), (2, 23, 500_000)):
        (folder / f"vram_{gpu_id}").write_text(f"{vram}\n", encoding="ascii")
        (folder / f"sdma_{gpu_id}").write_text(f"{sdma_us}\n", encoding="ascii")
    gpu = "0000:0c:00.0"
    findings = {gpu: Findings(gpu, "amd")}
    kfd.add_processes(findings, [Node(1, gpu, 1, "", None), Node(2, gpu, 2, "", None)], tmp_path)
    told = {
        reading.name: (dict(reading.labels)["pid"], reading.value) for reading in findings[gpu].collect(()).readings
    }
    assert told == {
        "gpu_process_memory_bytes": ("77", 123.0),
        "gpu_process_sdma_seconds_total": ("77", 1.5),
    }


@given(st.text(max_size=400))
def test_any_properties_are_parsed(text: str) -> None:
    for key, value in parse_properties(text).items():
        assert key.isascii()
        assert 0 <= value < 10**20
        assert f"{key} " in text


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_any_location_is_an_address(location: int, domain: int) -> None:
    address = pci_address(location, domain)
    assert address.count(":") == 2
    assert gfx_name(location).startswith("gfx") or not gfx_name(location)
