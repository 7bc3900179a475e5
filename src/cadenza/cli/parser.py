"""argparse with our errors: one sentence, exit code 2, and the closest known name."""

import argparse
from collections.abc import Iterator, Sequence
from typing import NoReturn

from cadenza.errors import UsageError, did_you_mean


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError in place of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('cadenza ')}: {message}; see `{self.prog} --help`")


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a parser with verbs. UsageError: an unknown verb or flag, with the closest known one."""
    verbs = verbs_of(parser)
    first = next((argument for argument in arguments if not argument.startswith("-")), None)
    if first is not None and first not in verbs:
        raise UsageError(f"unknown verb '{first}'{did_you_mean(first, verbs)}; see `{parser.prog} --help`")
    args, unknown = parser.parse_known_args(arguments)
    if not unknown:
        return args
    flag = next((argument for argument in unknown if argument.startswith("-")), None)
    prog = f"{parser.prog} {args.verb}" if args.verb else parser.prog
    if flag is None:
        raise UsageError(f"'{unknown[0]}' is one argument too many; see `{prog} --help`")
    name = flag.partition("=")[0]
    known = [option for option in _flags(verbs[args.verb] if args.verb else parser) if option.startswith("--")]
    raise UsageError(f"unknown flag '{name}'{did_you_mean(name, known)}; see `{prog} --help`")


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs below `parser`, each with its parser; none where it has none."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {verb: below for action in actions for verb, below in action.choices.items()}


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All option strings, also of the verbs below."""
    for action in parser._actions:
        yield from action.option_strings
    for below in verbs_of(parser).values():
        yield from _flags(below)
