"""Write docs/reference/python.md from the docstrings of the public names; `--check` fails if the page is stale."""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from pages import write_or_check

import cadenza
from cadenza.measure import session

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
INTRODUCTION = """\
# Python

Made by `scripts/generate_python.py` from the docstrings; do not edit. The examples are run by `tests/test_api.py`.

```python
import cadenza

run = cadenza.sweep({"urls": "http://localhost:8000", "concurrency": [1, 4, 16]})
for point in run.points:
    print(point.concurrency, point.throughput_tok_per_s, point.ttft_ms.mean, point.verdict)
run.requests(0).to_pandas()
```

`import cadenza` loads nothing else; each name is loaded on first use. Settings have the names of the flags' fields: the
table is under `cadenza.Spec`. Units are the ends of names: `_ms`, `_s`, `_ns`, `_tok`, `_per_s`.
"""


def render() -> str:
    """The page: each public name with its signature and docstring, a class with its public members."""
    parts = [INTRODUCTION]
    names = sorted(cadenza.__all__, key=lambda name: (inspect.isclass(getattr(cadenza, name)), name))
    for name in names:
        value = getattr(cadenza, name)
        parts.append(f"## cadenza.{name}\n\n{_block(f'cadenza.{name}', value)}")
        if value in (cadenza.Run, cadenza.Table):
            parts += [f"### {name}.{member}\n\n{_block(f'{name}.{member}', of)}" for member, of in _members(value)]
    parts.append("## Events of a session\n\nWhat `progress` is called with, from `cadenza.measure.session`:\n")
    events = [event for event in vars(session).values() if inspect.isclass(event) and issubclass(event, tuple)]
    listed = [event for event in events if event.__module__ == session.__name__ and event is not session.Watched]
    parts += [f"### {event.__name__}\n\n{_block(event.__name__, event)}" for event in listed]
    return "\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, object]]:
    for name, value in vars(owner).items():
        if not name.startswith("_"):
            yield name, value


def _block(name: str, value: object) -> str:
    text = (inspect.getdoc(value) or "").replace("  # doctest: +PANDAS", "")
    for library in ("POLARS", "PYARROW"):
        text = text.replace(f"  # doctest: +{library}", "")
    head = f"{name}{_signature(value)}\n\n" if inspect.isfunction(value) else ""
    fields = [field for field in getattr(value, "_fields", ()) if inspect.isclass(value)]
    head = f"{name}({', '.join(fields)})\n\n" if fields else head
    if inspect.isclass(value) and issubclass(value, msgspec.Struct):
        defaults = ", ".join(f"{field.name}={field.default!r}" for field in _with_defaults(value))
        head = textwrap.fill(f"{name}({defaults})", 110, subsequent_indent="    ", break_on_hyphens=False) + "\n\n"
    return f"```text\n{head}{text}\n```\n"


def _signature(value: Callable[..., object]) -> str:
    """Without modules, and the events under their name."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(inspect.signature(value)))
    return re.sub(r"Callable\[\[Prepared [^]]*\], None\]", "Progress", text)


def _with_defaults(struct: type[msgspec.Struct]) -> list[msgspec.structs.FieldInfo]:
    return [
        field
        if field.default is not msgspec.NODEFAULT
        else msgspec.structs.replace(field, default=field.default_factory())
        for field in msgspec.structs.fields(struct)
    ]


def main() -> int:
    return write_or_check(PAGE, render(), __file__)


if __name__ == "__main__":
    sys.exit(main())
