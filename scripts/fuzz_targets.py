"""Every parser of the room telemetry under one roof: its samples, what it may do with any bytes, and its traps."""

import json
import re
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, get_args

from fuzz_mutations import Tree, find_json
from fuzz_oracles import (
    check_erased,
    check_erased_page,
    check_metrics,
    check_page,
    check_readings,
    check_units,
    metrics_without_zeros,
)

from cadenza.clock import ManualClock
from cadenza.errors import UsageError
from cadenza.readings import Collected, Collector, Reason
from cadenza.telemetry.cards import amd_smi, rocm_smi
from cadenza.telemetry.cards.amdgpu import AmdgpuCollector
from cadenza.telemetry.cards.pcie import parse_messages
from cadenza.telemetry.cards.smi import OUTPUT_BYTES, find_roots, sniff
from cadenza.telemetry.host import HostCollector
from cadenza.telemetry.kernel.lines import DmesgText, KernelLine, KmsgRecords, parse_journal
from cadenza.telemetry.kernel.log import KernelLog
from cadenza.telemetry.kernel.patterns import Kind
from cadenza.telemetry.root import UnreadableError
from cadenza.telemetry.web_config import load, make_context

TESTS = Path(__file__).resolve().parents[1] / "tests"
_TELEMETRY = TESTS / "data/telemetry"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KERNELS_WORDS = re.compile(r"amdgpu[ :]|kfd kfd: amdgpu: |\[drm|nvidia |NVRM: Xid ")
_HASH = "$2b$10$" + "N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
_WEB = f"""tls_server_config:
  cert_file: cert.pem
  key_file: key.pem
  min_version: TLS12
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
basic_auth_users:
  prometheus: {_HASH}
"""
_PROC = {
    "proc/stat": b"cpu  100 20 50 1000 30 4 6 10 15 5\ncpu0 50 10 25 500 15 2 3 5 9 9\ncpu1 50 10 25 500 1 2 3 5 9 9\n",
    "proc/meminfo": b"MemTotal: 65536000 kB\nMemAvailable: 40000000 kB\nSwapTotal: 8000000 kB\nSwapFree: 7000000 kB\n",
    "proc/net/dev": b"Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
    b"    lo: 1000 10 9 9 9 9 9 9 1000 10 9 9 9 9 9 9\n  eth0: 900 20 9 9 9 9 9 9 3000 30 9 9 9 9 9 9\n",
}


class Target(NamedTuple):
    """A parser.

    kind       what its samples are: json, text, binary or tree
    samples    bytes by name; of a tree the files, as `pack` writes them
    check      what is wrong with what it makes of any bytes
    erased     what is wrong with what it makes of a sample, and of the same without one value; None: nothing to compare
    unspoilt   what is wrong with what it makes of a sample as it is, beside `check`
    """

    name: str
    kind: str
    samples: dict[str, bytes]
    check: Callable[[bytes], list[str]]
    erased: Callable[[bytes, bytes], list[str]] | None = None
    unspoilt: Callable[[bytes], list[str]] = lambda data: []


def pack(tree: Tree) -> bytes:
    return json.dumps({path: None if data is None else data.decode("latin-1") for path, data in tree.items()}).encode()


def unpack(data: bytes) -> Tree:
    return {path: None if text is None else text.encode("latin-1") for path, text in json.loads(data).items()}


class _Stand:
    """A folder in which one tree after the other stands; only files that differ are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._standing: Tree = {}

    def put(self, tree: Tree) -> Path:
        for path in [path for path in self._standing if path not in tree or tree[path] != self._standing[path]]:
            there = self._folder / path
            there.rmdir() if self._standing.pop(path) is None else there.unlink()
        for path, data in tree.items():
            if path not in self._standing:
                there = self._folder / path
                there.parent.mkdir(parents=True, exist_ok=True)
                there.mkdir() if data is None else there.write_bytes(data)
                self._standing[path] = data
        return self._folder


def _read(folder: Path, *patterns: str) -> dict[str, bytes]:
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return {str(path.relative_to(TESTS)): path.read_bytes() for path in paths}


def _tree(folder: Path) -> Tree:
    """A sample tree, which begins at /sys, from / on."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".keep"]
    return {f"sys/{path.relative_to(folder)}": path.read_bytes() for path in paths}


def tree_without_zeros(tree: Tree) -> Tree:
    """Of files that hold one number, and of gpu_metrics."""
    return {
        path: metrics_without_zeros(data or b"") if path.endswith("gpu_metrics") else b"7\n" if data == b"0\n" else data
        for path, data in tree.items()
    }


def _smi(name: str, parse: Callable[[str], Collected]) -> Target:
    def read(data: bytes) -> Collected:
        return parse(data.decode("utf-8", errors="replace"))

    def check(data: bytes) -> list[str]:
        text = data.decode("utf-8", errors="replace")
        problems = check_readings(parse(text), (name,))
        problems += [] if sniff(text) in ("rocm_smi", "amd_smi", None) else ["sniffed something else"]
        found = find_json(data)
        within = len(text) < OUTPUT_BYTES  # what stands behind is not looked at
        if within and found is not None and isinstance(found.value, dict) and find_roots(text) == "failed":
            problems.append("JSON at the beginning of a line was not found")
        return problems

    return Target(
        name,
        "json",
        _read(_TELEMETRY / name, "*.json", "*.txt", "*.csv"),
        check,
        erased=lambda before, after: check_erased(read(before), read(after)),
        unspoilt=lambda data: check_units(read(data)),
    )


def _sysfs(folder: Path) -> Target:
    samples = {
        "mixed_mi50_rx6900xt": _tree(TESTS / "data/sysfs/mixed_mi50_rx6900xt"),
        "mi300x_spx": _tree(TESTS / "data/sysfs/mi300x_spx"),
        "mi300x_cpx": _tree(_TELEMETRY / "sysfs/mi300x_cpx"),
    }
    for path, data in _read(_TELEMETRY, "gpu_metrics/mi300x*.bin").items():
        samples[Path(path).name] = {
            **samples["mi300x_spx"],
            "sys/class/drm/card1/device/gpu_metrics": data,
        }
    # A file whose text can be none of its own stands for what drivers do wrong.
    bad = _read(_TELEMETRY / "sysfs/bad_values", "*")
    samples["bad_values"] = {f"bad/{Path(path).name}": data for path, data in bad.items()}
    samples["bad_values"] |= samples["mixed_mi50_rx6900xt"]
    return _collected("sysfs", folder, samples, lambda root: AmdgpuCollector(root, processes=True, clock=ManualClock()))


def _collected(name: str, folder: Path, trees: dict[str, Tree], make: Callable[[Path], Collector]) -> Target:
    stand = _Stand(folder)
    known: dict[str, Collector] = {}

    def check(data: bytes) -> list[str]:
        root = stand.put(unpack(data))
        fresh = make(root)
        problems = check_readings(fresh.collect(), (fresh.name,)) + check_readings(fresh.collect(), (fresh.name,))
        # One that has seen every tree before it: cards come, go and change under it.
        old = known.setdefault("", fresh)
        return problems + check_readings(old.collect(), (old.name,))

    def read(data: bytes) -> Collected:
        return make(stand.put(unpack(data))).collect()

    return Target(
        name,
        "tree",
        {sample: pack(tree) for sample, tree in trees.items()},
        check,
        erased=lambda before, after: check_erased(read(before), read(after)),
        unspoilt=lambda data: check_units(read(data)),
    )


class _Said:
    """A kernel log that has said these lines, and no more."""

    lost: int | None = None

    def __init__(self, lines: list[KernelLine]) -> None:
        self._lines = lines

    def read(self) -> list[KernelLine]:
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None: ...


def _check_lines(lines: list[KernelLine], most: int) -> list[str]:
    """Lines of the kernel, and the events they tell."""
    problems = [] if len(lines) <= most else [f"{len(lines)} lines out of {most}"]
    problems += [
        f"no such line: {line}"
        for line in lines
        if not (line.boot_us is None or 0 <= line.boot_us < 1 << 64)
        or not (_PCI.fullmatch(line.device) or not line.device)
    ]
    log = KernelLog(_Said(lines), ("0000:43:00.0",))
    problems += check_readings(log.collect(), (log.name,))
    for event in log.events():
        if event.kind not in get_args(Kind) or not (event.gpu == "" or _PCI.fullmatch(event.gpu)):
            problems.append(f"no such event: {event}")
        if not event.text.isprintable() or len(event.text) > 1000 or not _KERNELS_WORDS.match(event.text):
            problems.append(f"forged: {event.text[:80]!r}")
    return problems


def _check_dmesg(data: bytes) -> list[str]:
    form, pieces = DmesgText(), DmesgText()
    lines = form.feed(data) + form.end()
    cut = [line for at in range(0, len(data), 1000) for line in pieces.feed(data[at : at + 1000])]
    return _check_lines(lines, data.count(b"\n")) + ([] if cut == lines or len(data) > 60_000 else ["cut otherwise"])


def _check_kmsg(data: bytes) -> list[str]:
    records = KmsgRecords()
    lines = records.feed(data) + records.end()
    ours = [raw for raw in data.split(b"\n") if re.match(rb"[0-7],|0+[0-7],", raw)]
    return _check_lines(lines, len(ours))


def _check_journal(data: bytes) -> list[str]:
    problems = []
    for raw in data.split(b"\n")[:2000]:
        line = parse_journal(raw)
        if line is None:
            continue
        problems += _check_lines([line], 1)
        if json.loads(raw.decode("utf-8", errors="replace")).get("_TRANSPORT") != "kernel":
            problems.append("not the kernel's")
    return problems


def _check_pcie(data: bytes) -> list[str]:
    text = data.decode("utf-8", errors="replace").strip()
    try:
        rates = parse_messages(text)
    except UnreadableError as error:
        return [] if error.reason in get_args(Reason) else [f"unknown reason: {error.reason}"]
    received, sent, payload = map(int, text.split(" "))
    right = rates == (float(received * payload), float(sent * payload)) and 0 < payload <= 4096 and min(rates) >= 0
    return [] if right else [f"{text} is no {rates}"]


def _web(folder: Path) -> Target:
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((TESTS / "data/tls" / name).read_bytes())

    def check(data: bytes) -> list[str]:
        file = folder / "web.yml"
        file.write_bytes(data)
        try:
            config = load(file)
            if config.tls_server_config is not None:
                made = make_context(config.tls_server_config, folder)
                return [] if isinstance(made, ssl.SSLContext) else ["no context"]
        except UsageError as error:
            return ["tells the hash"] if _HASH in str(error) else []
        return []

    return Target(
        "web_config", "text", {"web.yml": _WEB.encode(), "auth.yml": _WEB[_WEB.index("basic") :].encode()}, check
    )


def make_targets(folder: Path) -> list[Target]:
    """All of them, in their order; `folder` is theirs to write in."""
    homes = {name: Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)) for name in ("sysfs", "host", "web")}
    pages = _read(_TELEMETRY / "engines", "*.txt") | _read(TESTS / "golden/metrics", "*.txt")
    kernel = {Path(name).stem: data for name, data in _read(_TELEMETRY / "kernel_log", "*.txt").items()}
    counts = _read(TESTS / "data/sysfs", "**/pcie_bw")
    return [
        _smi("rocm_smi", rocm_smi.parse),
        _smi("amd_smi", amd_smi.parse),
        Target("gpu_metrics", "binary", _read(TESTS / "data", "**/*.bin"), check_metrics),
        _sysfs(homes["sysfs"]),
        Target("engine_page", "text", pages, check_page, check_erased_page),
        _collected("host", homes["host"], {"proc": dict(_PROC)}, HostCollector),
        Target("dmesg", "text", {name: kernel[name] for name in ("amdgpu_events", "benign_and_spoof")}, _check_dmesg),
        Target("kmsg", "text", {"kmsg_raw": kernel["kmsg_raw"]}, _check_kmsg),
        Target("journal", "json", {"journalctl_json": kernel["journalctl_json"]}, _check_journal),
        Target("pcie", "text", counts, _check_pcie),
        _web(homes["web"]),
    ]
