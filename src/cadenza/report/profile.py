"""A fitted engine profile as text: what `cadenza fit` writes, which `engine.profile.load` reads again."""

from typing import Any

import msgspec

Table = dict[str, Any]


def render(profile: Table, header: str) -> str:
    """The profile as TOML, `header` on top: the tables that `cadenza fit` makes, not TOML at large."""
    limits, models = profile["limits"], profile["models"]
    parts = [header, _pairs({key: profile[key] for key in ("name", "hardware")}), "[limits]\n" + _pairs(limits)]
    for model in models:
        measured = model["measured"]
        parts.append("[[models]]\n" + _pairs({key: model[key] for key in ("name", "thinking")}))
        plain = {key: value for key, value in measured.items() if key not in ("rows", "source", "domain")}
        parts.append("[models.measured]\n" + _pairs(plain))
        parts += [f"[models.measured.{name}]\n" + _pairs(measured[name]) for name in ("source", "domain")]
        parts += ["[[models.measured.rows]]\n" + _pairs(row) for row in measured["rows"]]
    return "\n".join(parts)


def quote(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's, and it leaves only DEL as it is."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _pairs(table: Table) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        items = [_value(item) for item in value]
        if len(items) <= 8:
            return f"[{', '.join(items)}]"
        lines = [", ".join(items[i : i + 8]) for i in range(0, len(items), 8)]
        return "[\n  " + ",\n  ".join(lines) + ",\n]"
    return repr(value)
