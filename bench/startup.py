"""What a user waits for and what an install weighs: `import cadenza`, `cadenza --help`, the base install.

    python bench/startup.py [--fast]        --fast leaves the install out

Prints each against its budget, and as a ratio to `python -c pass` of the same run. Exits 1 only on three times the
budget: these machines are shared.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORT_MS, HELP_MS, INSTALL_MB = 50, 200, 100
RUNS, GROSS = 11, 3


def wall_ms(*command: str) -> float:
    """Median wall time of the command, after one run to warm the caches."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def import_ms() -> float:
    """Cumulative time of `import cadenza`, as `python -X importtime` has it; the median of several."""
    command = [sys.executable, "-X", "importtime", "-c", "import cadenza"]
    found = []
    for _ in range(RUNS):
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        lines = re.findall(r"\|\s+(\d+) \| cadenza$", listing, re.MULTILINE)
        found.append(int(lines[-1]) / 1e3)
    return statistics.median(found)


def install_mb() -> float:
    """Bytes below site-packages that a base install adds to an empty environment."""

    def weigh(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (site,) = Path(folder).glob("lib/python*/site-packages")
        empty = weigh(site)
        pip = [f"{folder}/bin/pip", "install", "-q", "--disable-pip-version-check", "--no-compile", str(ROOT)]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
        return (weigh(site) - empty) / 1e6


def main() -> int:
    nothing = wall_ms(sys.executable, "-c", "pass")
    rows = [
        ("import cadenza", import_ms(), IMPORT_MS, "ms"),
        ("cadenza --help", wall_ms(sys.executable, "-m", "cadenza", "--help"), HELP_MS, "ms"),
    ]
    if "--fast" not in sys.argv[1:]:
        rows.append(("base install", install_mb(), INSTALL_MB, "MB"))
    print(f"{'python -c pass':<16} {nothing:8.1f} ms")
    for name, value, budget, unit in rows:
        ratio = f"  {value / nothing:5.2f} × python -c pass" if unit == "ms" else ""
        print(f"{name:<16} {value:8.1f} {unit}  budget {budget} {unit}  {'ok' if value <= budget else 'OVER'}{ratio}")
    return int(any(value > GROSS * budget for _, value, budget, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
