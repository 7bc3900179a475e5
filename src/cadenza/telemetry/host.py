"""The machine around the cards: processor time, memory, swap and network, out of /proc (man 5 proc).

All of the machine's, also inside a container.
"""

from pathlib import Path

from cadenza.readings import Collected, Collector, Labels, Missing, Reading, Reason
from cadenza.telemetry.root import UnreadableError, read_bytes

_STAT_BYTES = 1 << 20  # a line a core, then one long line of interrupt counts
_TABLE_BYTES = 1 << 20
_DEVICES = 256
_NAME_BYTES = 15  # of a network device (IFNAMSIZ)
_MOST_BYTES = 1 << 60  # of memory; and no counter of the kernel's has more than 64 bits
_CORES = 65_536
_CPU_RATIO, _CORES_ONLINE = "cadenza_host_cpu_ratio", "cadenza_host_cores"
_MEMORY_SIZE, _MEMORY_FREE = "cadenza_host_memory_size_bytes", "cadenza_host_memory_available_bytes"
_SWAP_USED = "cadenza_host_swap_used_bytes"
_RECEIVED, _SENT = "cadenza_host_network_received_bytes_total", "cadenza_host_network_sent_bytes_total"
# Columns of /proc/stat: user nice system idle iowait irq softirq steal. A guest's time is within user's and nice's.
_MODES = {"user": (0, 1), "system": (2, 5, 6), "iowait": (4,), "steal": (7,), "idle": (3,)}
_COLUMNS = 8
_BASIC_COLUMNS = 4  # every kernel has these
_RX_BYTES, _TX_BYTES, _DEVICE_COLUMNS = 0, 8, 16


class HostCollector(Collector):
    """Reads proc/ below `root`. Processor shares are those of the time between two rounds: the first has none."""

    name = "host"

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        self._before: list[int] | None = None

    def collect(self) -> Collected:
        readings: list[Reading] = []
        missing: list[Missing] = []
        for read, families in (
            (self._read_cpu, (_CPU_RATIO, _CORES_ONLINE)),
            (self._read_memory, (_MEMORY_SIZE, _MEMORY_FREE, _SWAP_USED)),
            (self._read_network, (_RECEIVED, _SENT)),
        ):
            try:
                series_values, gaps = read()
            except UnreadableError as error:
                series_values, gaps = [], dict.fromkeys(families, error.reason)
            readings += series_values
            missing += [Missing(family, "", reason) for family, reason in gaps.items()]
        return Collected(readings, missing)

    def _read_cpu(self) -> tuple[list[Reading], dict[str, Reason]]:
        lines = read_bytes(self._proc / "stat", _STAT_BYTES).split(b"\n")
        cores = sum(line.startswith(b"cpu") and line[3:4].isdigit() for line in lines[: _CORES + 1])
        readings = [Reading(_CORES_ONLINE, (), float(cores))] if cores else []
        gaps: dict[str, Reason] = {} if cores else {_CORES_ONLINE: "malformed"}
        now = _numbers(lines[0].removeprefix(b"cpu ").split()[:_COLUMNS]) if lines[0].startswith(b"cpu ") else None
        if now is None or len(now) < _BASIC_COLUMNS:
            self._before = None
            return readings, gaps | {_CPU_RATIO: "malformed"}
        before, self._before = self._before, now
        if before is None or len(before) != len(now):
            return readings, gaps
        # Idle and iowait may fall by a little when a core is taken off line, and iowait at any time.
        spent = [max(0, b - a) for a, b in zip(before, now, strict=True)]
        if whole := sum(spent):
            for mode, columns in _MODES.items():
                if columns[0] < len(spent):  # before Linux 2.6.11 there are fewer
                    share = sum(spent[column] for column in columns if column < len(spent)) / whole
                    readings.append(Reading(_CPU_RATIO, (("mode", mode),), share))
        else:
            self._before = before  # too soon: not one tick has passed
        return readings, gaps

    def _read_memory(self) -> tuple[list[Reading], dict[str, Reason]]:
        table: dict[bytes, int | None] = {}
        for line in read_bytes(self._proc / "meminfo").split(b"\n"):
            name, _, rest = line.partition(b":")
            words = rest.split()
            kibibytes = _numbers(words[:1]) if len(words) == 2 and words[1] == b"kB" else None
            table[name] = kibibytes[0] * 1024 if kibibytes else None
        readings: list[Reading] = []
        gaps: dict[str, Reason] = {}
        for family, names in (
            (_MEMORY_SIZE, (b"MemTotal",)),
            (_MEMORY_FREE, (b"MemAvailable",)),
            (_SWAP_USED, (b"SwapTotal", b"SwapFree")),
        ):
            values = [value for name in names if (value := table.get(name)) is not None]
            if len(values) < len(names):
                gaps[family] = "malformed" if all(name in table for name in names) else "absent"
            elif not 0 <= (value := values[0] - sum(values[1:])) <= _MOST_BYTES:
                gaps[family] = "out_of_range"
            else:
                readings.append(Reading(family, (), float(value)))
        return readings, gaps

    def _read_network(self) -> tuple[list[Reading], dict[str, Reason]]:
        series_values: dict[tuple[str, Labels], float] = {}
        for line in _read_table(self._proc / "net" / "dev")[: _DEVICES + 2]:
            name, colon, rest = line.rpartition(b":")
            columns = _numbers(rest.split())
            device = name.strip().decode("utf-8", errors="replace")
            if not colon or columns is None or len(columns) < _DEVICE_COLUMNS:
                continue  # the two lines of headings
            if len(name.strip()) > _NAME_BYTES or not device.isprintable():
                continue
            labels: Labels = (("device", device),)
            series_values.setdefault((_RECEIVED, labels), float(columns[_RX_BYTES]))
            series_values.setdefault((_SENT, labels), float(columns[_TX_BYTES]))
        readings = [Reading(*series, value) for series, value in series_values.items()]
        return readings, {} if readings else {_RECEIVED: "malformed", _SENT: "malformed"}


def _read_table(path: Path) -> list[bytes]:
    """The lines of a file that the kernel hands out a page at a time."""
    try:
        with path.open("rb") as file:
            return file.read(_TABLE_BYTES).split(b"\n")
    except OSError as error:
        raise UnreadableError(_why(error)) from None


def _why(error: OSError) -> Reason:
    if isinstance(error, PermissionError):
        return "denied"
    return "absent" if isinstance(error, FileNotFoundError | NotADirectoryError) else "failed"


def _numbers(words: list[bytes]) -> list[int] | None:
    """Counters of 64 bits; None where one of them is none."""
    if all(word.isdigit() and len(word) <= 20 for word in words):
        return [int(word) for word in words]
    return None
