"""How long the tool takes to start and how much room it takes: `python bench/startup.py [--fast]`.

Each figure stands against its budget, and times also against `python -c pass` in the same run, so that machines
compare. Exit code 1 only beyond three times a budget: a busy machine is slow, but not that slow. `--fast` leaves the
size out, which needs the package index.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
ROUNDS = 15
GROSS = 3
IMPORT = "import time; t = time.perf_counter_ns(); import cadenza; print(time.perf_counter_ns() - t)"


def wall_ms(*arguments: str) -> float:
    """Wall time of one `python ARGUMENTS…`, in ms."""
    begun = time.perf_counter_ns()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter_ns() - begun) / 1e6


def import_ms() -> float:
    """`import cadenza` within a fresh interpreter, in ms."""
    told = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
    return int(told.stdout) / 1e6


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def install_mb() -> float:
    """What `pip install .` adds to an empty virtual environment, compiled files included, in MB (10^6 bytes)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", name], check=True)
        empty = size_bytes(folder / "lib")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, str(ROOT)], check=True)
        return (size_bytes(folder / "lib") - empty) / 1e6


def report(name: str, figure: float, budget: float, unit: str, bare_ms: float | None = None) -> bool:
    """Print one line; whether the figure is within `GROSS` times its budget."""
    judged = "ok" if figure <= budget else "OVER" if figure <= GROSS * budget else f"OVER by more than {GROSS}x"
    ratio = f"  {figure / bare_ms:5.2f} x python -c pass" if bare_ms else ""
    print(f"{name:<20} {figure:7.1f} {unit}  budget {budget:g} {unit}  {judged}{ratio}", flush=True)
    return figure <= GROSS * budget


def main() -> int:
    bare, imports, helps = [], [], []
    for _ in range(ROUNDS):  # by turns, so that a disturbance meets all three
        bare.append(wall_ms("-c", "pass"))
        imports.append(import_ms())
        helps.append(wall_ms("-m", "cadenza", "--help"))
    bare_ms = median(bare)
    print(f"{'python -c pass':<20} {bare_ms:7.1f} ms  (median of {ROUNDS}, like the next two)")
    kept = [
        report("import cadenza", median(imports), 50, "ms", bare_ms),
        report("cadenza --help", median(helps), 200, "ms", bare_ms),
    ]
    if "--fast" not in sys.argv[1:]:
        kept.append(report("base install", install_mb(), 100, "MB"))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
