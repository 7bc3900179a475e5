"""Plain values as YAML that people read: order kept, long texts in blocks, a comment on top."""

import textwrap
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Items of a list stand further in than the list's name."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Each part whole: one that refers to another cannot be copied into another file."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def render(value: Any, comment: str) -> str:
    """`value` as YAML below `comment`, which is wrapped."""
    lines = [line for part in comment.splitlines() for line in textwrap.wrap(part, 100) or [""]]
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return head + yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
