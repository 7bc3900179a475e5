"""The shape of the code base, as tests: import direction, no cycles, no sockets outside their rooms, sizes.

Each rule is a function of source text, and each has a bad example that it must catch.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cadenza"

# A room may import from lower layers only, and from itself.
LAYERS = [
    {"record", "clock", "errors", "spec", ""},
    {"wire", "arrivals", "prompts"},
    {"load", "store", "stats", "engine"},
    {"sweep", "report"},
    {"cli", "__main__"},
]
LAYER = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
NETWORK = {"socket", "ssl", "select", "selectors", "http", "urllib", "socketserver"}
NETWORK_ROOMS = {"load", "engine"}
PURE_ROOMS = {"stats", "arrivals", "wire"}
FILES = {"pathlib", "io", "shutil", "tempfile", "subprocess", "os"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

Module = tuple[str, str]  # dotted name below cadenza, source


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also of those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(module: str) -> str:
    return module.split(".")[0]


def wrong_direction(module: str, source: str) -> list[str]:
    """Imports from a higher layer, or from another room of the same one (the words at the bottom may use each other)."""
    room, found = room_of(module), []
    for line, name in imports(source):
        if not name.startswith("cadenza."):
            continue
        other = room_of(name.removeprefix("cadenza."))
        if other not in LAYER:  # a name from cadenza itself, such as __version__
            continue
        below = LAYER[other] < LAYER[room] or other == room or (LAYER[room] == 0 == LAYER[other])
        # The entry point is what every verb hangs on.
        if not below and not (room == "__main__" and other == "cli"):
            found.append(f"{module}:{line} imports {name}")
    return found


def wrong_outside(module: str, source: str) -> list[str]:
    """Sockets outside load and engine, files in the pure rooms, asyncio anywhere."""
    room, found = room_of(module), []
    for line, name in imports(source):
        top = name.split(".")[0]
        network = top in NETWORK and room not in NETWORK_ROOMS
        # The embedded engine's verb watches its standard input; that is no network.
        if (network and (module, top) != ("cli.engine", "select")) or top == "asyncio":
            found.append(f"{module}:{line} imports {name}")
        if room in PURE_ROOMS and top in FILES:
            found.append(f"{module}:{line} imports {name}")
    return found


def cycles(modules: list[Module]) -> list[str]:
    """Modules that import each other, directly or over others."""
    names = {name for name, _ in modules}
    graph = {
        name: {other.removeprefix("cadenza.") for _, other in imports(source)} & names - {name}
        for name, source in modules
    }
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" → ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def too_long(name: str, source: str) -> list[str]:
    """Files over 400 lines, functions over 60."""
    found = []
    if (lines := source.count("\n")) > MAX_FILE_LINES:
        found.append(f"{name} has {lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{name}:{node.lineno} {node.name} has {length} lines")
    return found


def package() -> list[Module]:
    return [
        (".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"), path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def test_imports_point_downwards() -> None:
    assert [fault for name, source in package() if name != "__init__" for fault in wrong_direction(name, source)] == []


def test_the_network_is_behind_its_seam() -> None:
    assert [fault for name, source in package() for fault in wrong_outside(name, source)] == []


def test_there_are_no_cycles() -> None:
    assert cycles(package()) == []


def test_nothing_is_too_long() -> None:
    files = [path for folder in ("src", "tests", "bench", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    assert [f for path in files for f in too_long(str(path.relative_to(ROOT)), path.read_text("utf-8"))] == []


def test_only_declared_libraries_are_imported() -> None:
    import sys

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {text.split(">")[0].split("=")[0].strip() for text in declared} | sys.stdlib_module_names | {"cadenza"}
    tops = {name.split(".")[0] for _, source in package() for _, name in imports(source)}
    assert tops - allowed == set()


def test_no_room_is_an_empty_folder() -> None:
    for folder in PACKAGE.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert any(path.stat().st_size for path in folder.glob("*.py")), folder


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("wire.sse", "from cadenza.load.client import Client"),
        ("stats.window", "from cadenza.store import rundir"),
        ("record", "import cadenza.wire.sse"),
        ("sweep.run", "def f():\n    from cadenza.report import terminal"),
        ("report.live", "if TYPE_CHECKING:\n    from cadenza.cli.main import main"),
    ],
)
def test_a_wrong_import_is_caught(module: str, source: str) -> None:
    assert wrong_direction(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sweep.run", "import socket"),
        ("stats.window", "from pathlib import Path"),
        ("load.client", "import asyncio"),
        ("report.live", "from urllib.request import urlopen"),
    ],
)
def test_a_wrong_outside_import_is_caught(module: str, source: str) -> None:
    assert wrong_outside(module, source)


def test_a_cycle_is_caught() -> None:
    modules = [
        ("a.x", "from cadenza.b.y import q"),
        ("b.y", "import cadenza.c"),
        ("c", "from cadenza import a\nfrom cadenza.a import x"),
    ]
    assert cycles(modules) == ["a.x → b.y → c → a.x"]
    assert cycles(modules[:2]) == []


def test_length_is_caught() -> None:
    assert too_long("f", "x = 1\n" * 401) == ["f has 401 lines"]
    assert too_long("f", "def g():\n" + "    x = 1\n" * 60) == ["f:1 g has 61 lines"]
    assert too_long("f", "def g():\n" + "    x = 1\n" * 59) == []
