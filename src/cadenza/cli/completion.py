"""`cadenza completion`: a script that completes verbs, flags and values in the shell."""

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Print the completion script of a shell, e.g. for bash: cadenza completion bash "
        "> ~/.local/share/bash-completion/completions/cadenza"
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script; returns 0."""
    import shtab

    from cadenza.cli.flags import reveal_all
    from cadenza.cli.main import VERBS, make_parser
    from cadenza.cli.parser import verbs_of

    parser = make_parser(list(VERBS))
    for verb in verbs_of(parser).values():
        reveal_all(verb)
    print(shtab.complete(parser, args.shell))
    return 0
