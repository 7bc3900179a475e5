"""The rules of docs/explanation/architecture.md, held against the source; each checker also sees a text that breaks."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# Rooms by layer. A room sees itself and the layers below; the rest of its own layer is closed to it.
WORDS = frozenset({"", "record", "readings", "clock", "domain", "errors", "spec"})
LAYERS = (
    WORDS,
    frozenset({"wire", "arrivals", "prompts", "hardware"}),
    frozenset({"load", "store", "stats", "engine", "telemetry"}),
    frozenset({"analysis", "capacity"}),
    frozenset({"measure", "watch", "live", "observe", "deploy", "fleet", "report"}),
    frozenset({"api"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
# What each part of the engine may import; "" are its own modules: profile, timing_laws, build.
ENGINE = {
    "laws": frozenset({"laws"}),
    "core": frozenset({"laws", "core"}),
    "board": frozenset({"core", "board"}),
    "": frozenset({"laws", "core", ""}),
    "api": frozenset({"laws", "core", "", "api"}),
}
# The package itself shows the face, whose modules it imports on first use only: the one arrow that goes up.
FRONT = ("cadenza.__init__", "api")
NETWORK = frozenset({"socket", "ssl", "select", "selectors", "asyncio", "subprocess", "http", "urllib", "socketserver"})
FILES = frozenset({"io", "os", "pathlib", "shutil", "tempfile"})
PURE = frozenset({"stats", "analysis", "capacity", "arrivals", "wire", "hardware"})
SOCKETS = frozenset({"socket", "ssl", "selectors", "socketserver", "http", "urllib"})
SOCKET_ROOMS = frozenset({"load", "engine", "telemetry"})
MAX_FILE_LINES = 400
MAX_FOLDER_LINES = 4000
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = frozenset({"manager", "handler", "helper", "helpers", "utils", "util", "base", "mixin"})

Modules = Mapping[str, str]  # dotted name → source text


class Import(NamedTuple):
    """`target` as dotted as the statement says; for `from a import b` that is a.b, which may be a module or not."""

    target: str
    line: int


def read_imports(source: str, module: str) -> Iterator[Import]:
    """Every import, wherever it stands: in functions, under TYPE_CHECKING, relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno)


def room_of(target: str) -> str | None:
    """The room a dotted name belongs to, "" for the package itself, None for a stranger."""
    first, *rest = target.split(".")
    if first != "cadenza":
        return None
    return rest[0] if rest and not (rest[0].startswith("__") and rest[0] != "__main__") else ""


def layer_of(room: str) -> int | None:
    return next((level for level, rooms in enumerate(LAYERS) if room in rooms), None)


def find_wrong_directions(source: str, module: str) -> list[str]:
    """Imports that go up, or sideways into another room of the layer."""
    room = room_of(module)
    assert room is not None
    level = layer_of(room)
    if level is None:
        return [f"{module}: room {room!r} has no layer"]
    wrong = []
    for target, line in read_imports(source, module):
        other = room_of(target)
        if other is None or other == room or (module, other) == FRONT:
            continue
        below = layer_of(other)
        if below is None or below > level or (below == level and level > 0):
            wrong.append(f"{module}:{line}: {room or 'cadenza'} imports {target}")
    return wrong


def find_engine_directions(source: str, module: str) -> list[str]:
    """Imports between the parts of the engine that its order does not allow."""
    part = engine_part(module)
    if part is None:
        return []
    others = ((engine_part(i.target), i) for i in read_imports(source, module))
    return [
        f"{module}:{i.line}: {part} imports {i.target}" for other, i in others if other not in ENGINE[part] | {None}
    ]


def engine_part(target: str) -> str | None:
    """laws, core, board or api; "" for the modules of the engine itself, None outside of it."""
    first, *rest = target.removeprefix("cadenza.").split(".")
    return None if first != "engine" else rest[0] if rest and rest[0] in ENGINE else ""


def find_impurities(source: str, module: str) -> list[str]:
    """What a room may not touch: sockets outside load and engine, network and files in the pure rooms, asyncio."""
    room = room_of(module)
    banned = frozenset({"asyncio"})
    if room in PURE:
        banned |= NETWORK | FILES
    elif room not in SOCKET_ROOMS:
        banned |= SOCKETS
    found = [f"{module}:{i.line}: imports {i.target}" for i in read_imports(source, module) if top(i.target) in banned]
    if room in PURE:
        calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        opens = (node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "open")
        found += [f"{module}:{node.lineno}: opens a file" for node in opens]
    return found


def top(target: str) -> str:
    return target.partition(".")[0]


def find_eager(source: str, extras: frozenset[str]) -> list[int]:
    """Lines that import an optional library with the module: it may not be installed."""
    lines = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name.split(".")[0] in extras for name in names):
                lines.append(node.lineno)
    return lines


def find_undeclared(source: str, module: str, declared: frozenset[str]) -> list[str]:
    """Third-party imports that pyproject.toml does not name."""
    known = declared | sys.stdlib_module_names | {"cadenza"}
    return [
        f"{module}:{i.line}: imports {i.target}" for i in read_imports(source, module) if top(i.target) not in known
    ]


def find_cycles(modules: Modules) -> list[str]:
    """Modules that reach themselves by imports, each with one way round."""
    ways: dict[str, set[str]] = {}
    for module, source in modules.items():
        if module == FRONT[0]:
            continue  # for type checkers alone, as `test_the_package_itself_imports_nothing` holds
        ways[module] = {found for target, _ in read_imports(source, module) if (found := resolve(target, modules))}
    cycles = []
    for start in modules:
        trail = {start: [start]}
        ahead = [start]
        while ahead:
            here = ahead.pop()
            for there in sorted(ways.get(here, ())):
                if there == start:
                    cycles.append(" → ".join([*trail[here], start]))
                elif there not in trail:
                    trail[there] = [*trail[here], there]
                    ahead.append(there)
    return cycles


def resolve(target: str, modules: Modules) -> str | None:
    """The module that `target` names, or that holds what it names."""
    owner = target.rpartition(".")[0]
    return next((name for name in (target, f"{target}.__init__", owner, f"{owner}.__init__") if name in modules), None)


def find_oversize(source: str, path: str) -> list[str]:
    lines = len(source.splitlines())
    found = [f"{path}: {lines} lines"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    return found


def find_empty_names(source: str, module: str) -> list[str]:
    """Modules and classes named after nothing in particular."""
    names = [module.rpartition(".")[2]]
    names += [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    words = {name: re.findall(r"[A-Z]?[a-z0-9]+", name) for name in names}
    return [f"{module}: {name}" for name in names if EMPTY_NAMES & {word.lower() for word in words[name]}]


def read_modules() -> dict[str, str]:
    src = ROOT / "src"
    paths = sorted((src / "cadenza").rglob("*.py"))
    return {".".join(path.relative_to(src).with_suffix("").parts): path.read_text(encoding="utf-8") for path in paths}


MODULES = read_modules()
SCRIPTS = [path for folder in ("src", "tests", "bench", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What a distribution is imported as, where that is not its name.
IMPORTED_AS = {"pyyaml": "yaml", "nvidia_ml_py": "pynvml"}


def read_imported(entries: list[str]) -> frozenset[str]:
    names = (re.split(r"[<>=!~ \[;]", entry)[0].replace("-", "_").lower() for entry in entries)
    return frozenset(IMPORTED_AS.get(name, name) for name in names)


DECLARED = read_imported(PROJECT["dependencies"])
EXTRAS = read_imported(
    [
        entry
        for extra in PROJECT["optional-dependencies"]
        if extra not in ("dev", "bench")
        for entry in PROJECT["optional-dependencies"][extra]
    ]
)


def test_the_package_is_found() -> None:
    assert {"cadenza.__init__", "cadenza.record", "cadenza.load.transport"} <= MODULES.keys()
    assert {"msgspec", "numpy"} <= DECLARED


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_the_rules(module: str) -> None:
    source = MODULES[module]
    assert find_wrong_directions(source, module) == []
    assert find_engine_directions(source, module) == []
    assert find_impurities(source, module) == []
    assert find_undeclared(source, module, DECLARED | EXTRAS) == []
    assert find_eager(source, EXTRAS) == []
    assert find_empty_names(source, module) == []


def test_no_folder_is_larger_than_a_person_reads() -> None:
    sizes: dict[str, int] = {}
    for module, source in MODULES.items():
        folder = module.rpartition(".")[0]
        sizes[folder] = sizes.get(folder, 0) + source.count("\n")
    assert {folder: size for folder, size in sizes.items() if size > MAX_FOLDER_LINES} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_cycles(MODULES) == []


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_the_package_itself_imports_nothing_of_its_rooms() -> None:
    body = ast.parse(MODULES["cadenza.__init__"]).body
    eager = ast.unparse(ast.Module([node for node in body if not _is_for_types(node)], []))
    assert {i.target for i in read_imports(eager, "cadenza.__init__")} == {
        "importlib",
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert find_oversize(source, path.name) == []
    if path.is_relative_to(ROOT / "tests"):
        assert not any(top(i.target) == "bench" for i in read_imports(source, path.stem))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.record", "from cadenza.wire.sse import SseParser"),
        ("cadenza.wire.sse", "import cadenza.load.client"),
        ("cadenza.wire.sse", "from ..arrivals import poisson"),
        ("cadenza.stats.latency", "from cadenza.store.rundir import read_run"),
        ("cadenza.load.client", "from cadenza.engine.core.core import Core"),
        ("cadenza.store.rundir", "def read():\n    from cadenza.report import terminal"),
        ("cadenza.measure.run", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cadenza.report.live"),
        ("cadenza.report.live", "from cadenza.measure.run import Runner"),
        ("cadenza.measure.run", "from cadenza.cli.main import main"),
        ("cadenza.measure.session", "from cadenza.api import sweep"),
        ("cadenza.api", "from cadenza.cli.options import read_spec"),
        ("cadenza.__init__", "from cadenza.measure.session import measure"),
        ("cadenza.misc.things", ""),
        ("cadenza.measure.run", "import cadenza.misc.things"),
    ],
)
def test_a_wrong_direction_is_found(module: str, source: str) -> None:
    assert len(find_wrong_directions(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.spec", "from cadenza.record import Phase"),
        ("cadenza.wire.http1", "from cadenza import __version__\nfrom cadenza.wire.dialect import Delta"),
        ("cadenza.wire.sse", "from .dialect import Delta\nfrom ..record import Phase"),
        ("cadenza.measure.run", "from cadenza.load.client import Client\nfrom cadenza.analysis.summary import relate"),
        ("cadenza.report.terminal", "from cadenza.analysis.summary import Summary"),
        ("cadenza.cli.main", "from cadenza.measure.run import Runner\nimport cadenzas"),
        ("cadenza.__main__", "from cadenza.cli.main import main"),
        ("cadenza.api", "from cadenza.measure.session import measure\nfrom cadenza.watch.machine import MachineWatch"),
        ("cadenza.__init__", "from cadenza.api import sweep"),
    ],
)
def test_a_right_direction_is_not(module: str, source: str) -> None:
    assert find_wrong_directions(source, module) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.engine.core.core", "def f():\n    from cadenza.engine.api.exposition import render"),
        ("cadenza.engine.core.core", "from cadenza.engine.profile import Profile"),
        ("cadenza.engine.laws.timing", "from ..core.sequence import Limits"),
        ("cadenza.engine.board.shadow", "import cadenza.engine.api.http_api"),
        ("cadenza.engine.build", "from cadenza.engine.api.text import output_token"),
    ],
)
def test_a_wrong_direction_inside_the_engine_is_found(module: str, source: str) -> None:
    assert len(find_engine_directions(source, module)) == 1
    assert find_engine_directions("from cadenza.engine.core.core import Core", "cadenza.engine.api.pages") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.stats.latency", "import socket"),
        ("cadenza.arrivals.gamma", "from urllib.parse import urlsplit"),
        ("cadenza.wire.http1", "def connect():\n    import ssl"),
        ("cadenza.engine.api.server", "from asyncio import run"),
        ("cadenza.measure.preflight", "from ssl import SSLContext"),
    ],
)
def test_an_impurity_is_found(module: str, source: str) -> None:
    assert len(find_impurities(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.load.sockets", "import socket, ssl, selectors"),
        ("cadenza.engine.api.server", "import socket, selectors"),
        ("cadenza.store.rundir", "from pathlib import Path\nopen('x')"),
    ],
)
def test_what_a_room_may_touch_is_no_impurity(module: str, source: str) -> None:
    assert find_impurities(source, module) == []


@pytest.mark.parametrize("source", ["import requests", "from toml import load", "def f():\n    import httpx._client"])
def test_an_undeclared_library_is_found(source: str) -> None:
    assert len(find_undeclared(source, "cadenza.load.client", DECLARED)) == 1
    assert find_undeclared("import numpy.typing, json, cadenza.spec", "cadenza.load.client", DECLARED) == []


def test_an_extra_is_imported_where_it_is_used_only() -> None:
    assert find_eager("import os\nimport bcrypt", frozenset({"bcrypt"})) == [2]
    assert find_eager("def f():\n    import bcrypt", frozenset({"bcrypt"})) == []


def test_a_cycle_is_found() -> None:
    one = {"cadenza.a": "from cadenza import b", "cadenza.b": "def f():\n    from cadenza.c import d", "cadenza.c": ""}
    assert find_cycles(one) == []
    one["cadenza.c"] = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cadenza.a import A"
    assert find_cycles(one)[0] == "cadenza.a → cadenza.b → cadenza.c → cadenza.a"
    assert find_cycles({"cadenza.a": "from .a import x"}) == ["cadenza.a → cadenza.a"]
    room = {"cadenza.r.__init__": "from .a import x", "cadenza.r.a": "from cadenza.r import y"}
    assert find_cycles(room)[0] == "cadenza.r.__init__ → cadenza.r.a → cadenza.r.__init__"


def test_an_oversize_file_or_function_is_found() -> None:
    assert find_oversize("x = 1\n" * 400, "x.py") == []
    assert find_oversize("x = 1\n" * 401, "x.py") == ["x.py: 401 lines"]
    assert find_oversize("def f():\n" + "    x = 1\n" * 59, "x.py") == []
    assert find_oversize("class C:\n  def f():\n" + "    x = 1\n" * 60, "x.py") == ["x.py:2: f has 61 lines"]
    assert find_oversize("async def f():\n" + "    x = 1\n" * 60, "x.py") == ["x.py:1: f has 61 lines"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cadenza.wire.sse", "class StreamHandler: ..."),
        ("cadenza.store.run_manager", ""),
    ],
)
def test_an_empty_name_is_found(module: str, source: str) -> None:
    assert len(find_empty_names(source, module)) == 1
    assert find_empty_names("class Database: ...", "cadenza.store.based") == []
