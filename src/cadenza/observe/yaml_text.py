"""Plain values as readable YAML: keys in order, long texts as blocks, a comment at the top."""

import textwrap
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """List items are indented more than the list's key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors, so that each part can be copied into another file."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def render(value: Any, comment: str) -> str:
    """`value` as YAML below `comment`, which is wrapped."""
    lines = [line for part in comment.splitlines() for line in textwrap.wrap(part, 100) or [""]]
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return head + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
