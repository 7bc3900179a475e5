"""`sys/class/drm`: which cards there are, and the text files in `device/` of each."""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cadenza.telemetry.findings import Attempt, Plan
from cadenza.telemetry.root import UnreadableError, read_bytes, read_integer, read_text

_CARD = re.compile(r"card([0-9]{1,5})", re.ASCII)
_RENDER = re.compile(r"renderD[0-9]{1,5}", re.ASCII)
_SLOT = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) GT/s(?: PCIe)?", re.ASCII)
_COUNT = re.compile(r"(ue|ce|de): ([0-9]{1,20})", re.ASCII)
_PAGE = re.compile(r"0x[0-9a-f]{1,16} : 0x[0-9a-f]{1,16} : ([RPF])", re.ASCII | re.IGNORECASE)
_AMD = 0x1002
_MAX_CARDS = 256
_FACT_CHARACTERS = 96
# A binary attribute gives one page a read.
_PAGE_BYTES, _MAX_PAGES_BYTES = 4096, 1 << 20

_SEVERITIES = {"ue": "uncorrectable", "ce": "correctable", "de": "deferred"}
_PAGE_STATES = {"R": "retired", "P": "pending", "F": "failed"}
_POOLS = ("vram", "vis_vram", "gtt")
# `resuming` is on its way, `unsupported` is a card that cannot sleep, `error` one whose power management gave up.
_AWAKE = frozenset({"active", "resuming", "unsupported", "error"})
_ASLEEP = frozenset({"suspended", "suspending"})


class CardPath(NamedTuple):
    """A card: its PCI address, its name (card1), its device folder and its render node (renderD128; empty: unknown).

    `life` is the number of the folder that the driver made for it. Another one means that the driver took the card
    anew: it was exchanged, or the driver was loaded again.
    """

    gpu: str
    card: str
    device: Path
    render: str
    life: int


# A card's name → the identity of its folder and `uevent`, and the card; None: not an amdgpu card.
KnownCards = dict[str, tuple[tuple[int, ...], CardPath | None]]


def find_cards(root: Path, known: KnownCards | None = None) -> list[CardPath]:
    """Cards that the amdgpu driver runs, by number: not AMD's without it, nor anyone else's, nor a partition.

    Partitions of an MI300 beyond the first are platform devices of another driver; they have no sensors. In a
    container, only those that were passed in, where that is known. `known` is the caller's, from one round to the
    other: a card whose folder and `uevent` are the same as before is not read again. A card that is gone takes them
    along, so this finds out at once.
    """
    folder = f"{root}/sys/class/drm"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - connectors are in the way, and a path for each would cost more
    except OSError:
        return []
    matches = [match for name in names if (match := _CARD.fullmatch(name))]
    known = {} if known is None else known
    by_address: dict[str, CardPath] = {}
    for match in sorted(matches, key=lambda match: int(match[1]))[:_MAX_CARDS]:
        name = match[0]
        try:
            life = os.stat(f"{folder}/{name}").st_ino  # noqa: PTH116 - a path would cost as much
            status = os.stat(f"{folder}/{name}/device/uevent")  # noqa: PTH116
        except OSError:
            continue
        # sysfs numbers every file once; elsewhere one that is written in place keeps its number. The `uevent` is the
        # bus's and outlives the driver, whose name stands in it.
        stamp = life, status.st_dev, status.st_ino, status.st_mtime_ns
        before = known.get(name)
        if before is None or before[0] != stamp:
            before = known[name] = stamp, _identify(Path(folder, name, "device"), life)
        if (path := before[1]) is not None:
            by_address.setdefault(path.gpu, path)
    for name in known.keys() - {match[0] for match in matches}:
        del known[name]
    return _passed_in(list(by_address.values()), root, names)


def _passed_in(cards: list[CardPath], root: Path, names: list[str]) -> list[CardPath]:
    """Those of `cards` whose render node is in dev/dri. A container sees the sysfs of all of the host's cards.

    All, where dev/dri has no render node (an exporter that was given sysfs alone), and where it has one of anything
    else that is in `names`: with partitions, and other vendors' cards, it is ambiguous which are meant. The node of a
    card that is gone may stay behind, and must not bring the others in.
    """
    try:
        nodes = {name for name in os.listdir(f"{root}/dev/dri") if _RENDER.fullmatch(name)}  # noqa: PTH208
    except OSError:
        return cards
    there = nodes.intersection(names)
    if not nodes or not there <= {card.render for card in cards}:
        return cards
    return [card for card in cards if card.render in there or not card.render]


def _identify(device: Path, life: int) -> CardPath | None:
    try:
        uevent = parse_uevent(read_text(device / "uevent"))
        gpu = uevent.get("PCI_SLOT_NAME", "").lower()
        if uevent.get("DRIVER") == "amdgpu" and _SLOT.fullmatch(gpu) and int(read_text(device / "vendor"), 16) == _AMD:
            return CardPath(gpu, device.parent.name, device, _render_node(device), life)
    except (UnreadableError, ValueError):
        pass
    return None


def _render_node(device: Path) -> str:
    try:
        return next((entry.name for entry in (device / "drm").iterdir() if _RENDER.fullmatch(entry.name)), "")
    except OSError:
        return ""


def parse_uevent(text: str) -> dict[str, str]:
    """KEY=VALUE lines."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def read_asleep(device: Path) -> bool:
    """Whether the card is suspended, which only this file shows without waking it.

    A card without the file cannot sleep. UnreadableError for one whose state is unknown: it is not read further.
    """
    try:
        status = read_text(f"{device}/power/runtime_status")
    except UnreadableError as error:
        if error.reason == "absent":
            return False
        raise
    if status in _ASLEEP:
        return True
    if status not in _AWAKE:
        raise UnreadableError("malformed")
    return False


def read_fact(path: Path) -> str:
    """One line of printable text that never changes; empty if there is none, or it is N/A."""
    try:
        text = read_text(path)
    except UnreadableError:
        return ""
    return clean(text)


def clean(text: str) -> str:
    """`text` if it can be a label's value, else empty."""
    fits = len(text) <= _FACT_CHARACTERS and text.isprintable() and "�" not in text
    return text if fits and text.upper() not in ("N/A", "NONE") else ""


def scaled(path: Path, parts: float) -> Callable[[], float]:
    """A reader of the file's integer divided by `parts`."""
    name = str(path)

    def read() -> float:
        value = read_integer(name)
        if abs(value) > 1 << 64:  # more than any file can mean, and than a division can take
            raise UnreadableError("out_of_range")
        return value / parts

    return read


def parse_link_speed(text: str) -> float:
    """`16.0 GT/s PCIe`, in transfers/s. UnreadableError: not_supported for Unknown, malformed for anything else."""
    match = _SPEED.fullmatch(text)
    if match is None:
        raise UnreadableError("not_supported" if text.startswith("Unknown") else "malformed")
    return float(match[1]) * 1e9


def _link_speed(path: Path) -> Callable[[], float]:
    name = str(path)
    return lambda: parse_link_speed(read_text(name))


def plan_device(device: Path) -> Plan:
    """How to read busy shares, memory, link and replays; an optional file that is absent is reported by its read.

    Often: busy shares and VRAM in use. The host's memory in use, and what is in use of the VRAM that the host can
    reach, gain little from half a second.
    """
    often: list[Attempt] = [
        ("gpu_busy_ratio", scaled(device / "gpu_busy_percent", 100), ()),
        ("gpu_memory_busy_ratio", scaled(device / "mem_busy_percent", 100), ()),
        ("gpu_memory_used_bytes", scaled(device / "mem_info_vram_used", 1), ("vram",)),
    ]
    seldom: list[Attempt] = []
    for pool in _POOLS:
        size, used = (scaled(device / f"mem_info_{pool}_{end}", 1) for end in ("total", "used"))
        seldom.append(("gpu_memory_size_bytes", size, (pool,)))
        if pool != "vram":
            seldom.append(("gpu_memory_used_bytes", used, (pool,)))
    for state in ("current", "max"):
        speed = _link_speed(device / f"{state}_link_speed")
        seldom.append(("gpu_pcie_link_speed_transfers_per_second", speed, (state,)))
        seldom.append(("gpu_pcie_link_width_lanes", scaled(device / f"{state}_link_width", 1), (state,)))
    seldom.append(("gpu_pcie_replays_total", scaled(device / "pcie_replay_count", 1), ()))
    return Plan(often, seldom)


def parse_ras_counts(text: str) -> dict[str, int]:
    """Errors by severity. UnreadableError: asleep while the driver may not query (during a reset), else malformed."""
    if "currently inaccessible" in text:
        raise UnreadableError("asleep")
    counts = {_SEVERITIES[m[1]]: int(m[2]) for m in map(_COUNT.fullmatch, text.splitlines()) if m}
    if not counts:
        raise UnreadableError("malformed")
    return counts


def read_ras(device: Path) -> dict[str, dict[str, int] | UnreadableError]:
    """Errors by block (umc, gfx, …) and severity, or why a block has none; empty on a card without RAS."""
    try:
        names = sorted(entry.name for entry in (device / "ras").iterdir() if entry.name.endswith("_err_count"))
    except OSError:
        return {}
    errors: dict[str, dict[str, int] | UnreadableError] = {}
    for name in names:
        block = clean(name.removesuffix("_err_count"))
        if block:
            try:
                errors[block] = parse_ras_counts(read_text(device / "ras" / name))
            except UnreadableError as error:
                errors[block] = error
    return errors


def parse_bad_pages(text: str) -> dict[str, int]:
    """Pages by state, all three present; lines are `address : size : state`, on some kernels under a headline.

    Empty text means no page. UnreadableError: text that is no such list, asleep where it is "inaccessible".
    """
    if "currently inaccessible" in text:
        raise UnreadableError("asleep")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if lines and not any(_PAGE.fullmatch(line) or line.startswith("gpu pfn") for line in lines):
        raise UnreadableError("malformed")
    counts = Counter(_PAGE_STATES[errors[1].upper()] for errors in map(_PAGE.fullmatch, lines) if errors)
    return {state: counts[state] for state in _PAGE_STATES.values()}


def read_bad_pages(device: Path) -> dict[str, int]:
    """Pages of VRAM by state. UnreadableError if the card has none; out_of_range beyond a MiB of them."""
    path = device / "ras/gpu_vram_bad_pages"
    data = read_bytes(path)
    if len(data) >= _PAGE_BYTES:
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_PAGES_BYTES + 1)
        except OSError:
            raise UnreadableError("failed") from None
        if len(data) > _MAX_PAGES_BYTES:
            raise UnreadableError("out_of_range")
    return parse_bad_pages(data.decode("ascii", errors="replace"))
