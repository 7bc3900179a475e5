"""cadenza: how many people an LLM server can hold at a steady typing cadence.

    run = cadenza.sweep({"urls": "http://localhost:8000", "concurrency": [1, 4, 16]})
    run = cadenza.open_run("latest")

The public names are loaded on first use (`cadenza.api`, `cadenza.spec`, `cadenza.errors`): the import itself is quick.
The package is a set of rooms (see docs/explanation/architecture.md); `cadenza.record` holds the words that all use.
"""

TYPE_CHECKING = False  # type checkers take it for true; `typing` would be most of the import's time
if TYPE_CHECKING:
    from cadenza.api import Run, Table, open_run, sweep
    from cadenza.errors import CadenzaError, SettingError, StoreError, TargetError, UsageError
    from cadenza.spec import Credentials, Slo, Spec, Telemetry, Timeouts

__version__ = "0.1.0"

_HOMES = {
    "api": ("Run", "Table", "open_run", "sweep"),
    "errors": ("CadenzaError", "SettingError", "StoreError", "TargetError", "UsageError"),
    "spec": ("Credentials", "Slo", "Spec", "Telemetry", "Timeouts"),
}
__all__ = [
    "CadenzaError",
    "Credentials",
    "Run",
    "SettingError",
    "Slo",
    "Spec",
    "StoreError",
    "Table",
    "TargetError",
    "Telemetry",
    "Timeouts",
    "UsageError",
    "open_run",
    "sweep",
]


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> object:
        """Load a public name on its first use (PEP 562)."""
        import importlib

        for module, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"cadenza.{module}"), name)
        raise AttributeError(f"module 'cadenza' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
