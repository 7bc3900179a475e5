"""Entry point: selects the verb, runs it, and turns our errors into one sentence and an exit code."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from cadenza import __version__
from cadenza.cli.parser import Parser, parse
from cadenza.errors import CadenzaError

# verb → (module, one line of help). A module is imported only when its verb is used: `--help` stays quick.
VERBS = {
    "sweep": ("cadenza.cli.sweep", "measure a server over a grid of concurrencies or rates"),
    "run": ("cadenza.cli.run", "measure one point of that grid"),
    "show": ("cadenza.cli.show", "report a run, whole or broken off"),
    "ls": ("cadenza.cli.ls", "list the runs in a folder"),
    "check": ("cadenza.cli.check", "judge whether a run is valid, check by check"),
    "calibrate": ("cadenza.cli.calibrate", "measure the throughput limit of this machine's client"),
    "exporter": ("cadenza.cli.exporter", "serve metrics of GPUs, host and kernel log to Prometheus"),
    "observe": ("cadenza.cli.observe", "Prometheus, alerts and dashboards for an engine and its GPUs"),
    "top": ("cadenza.cli.top", "watch a server, or a run in progress, in the terminal"),
    "predict": ("cadenza.cli.predict", "predict the performance of a model on GPUs (physics, nothing is measured)"),
    "fit": ("cadenza.cli.fit", "make an engine profile from a run, to simulate that server"),
    "probe": ("cadenza.cli.probe", "identify a server and test one short request"),
    "engine": ("cadenza.cli.engine", "serve the embedded engine (its numbers are simulated)"),
    "completion": ("cadenza.cli.completion", "print a completion script for bash, zsh or tcsh"),
}

EXIT_INTERRUPTED = 130
_EPILOG = """\
examples:
  cadenza sweep                                   the embedded engine, no server needed
  cadenza sweep http://localhost:8000             your server, at C = 1, 2, 4, 8, 16
  cadenza run http://localhost:8000 -c 32         one point
  cadenza show latest --markdown                  a table for an issue or a wiki

exit codes: 0 every point is valid, 1 a point is invalid or something failed here,
            2 a flag or file is invalid, 3 the server cannot be reached or refuses, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = make_parser(arguments)
        args = parse(parser, arguments)
        if args.verb is None:
            parser.print_help()
            return 0
        code: int = importlib.import_module(VERBS[args.verb][0]).run(args)
        if sys.stdout is not None:  # closed before the start
            sys.stdout.flush()
        return code
    except CadenzaError as error:
        print(f"cadenza: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader is gone (`| head`). Keep the interpreter from writing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        print(f"cadenza: {_describe_bug(error)}", file=sys.stderr)
        return 1


def _describe_bug(error: Exception) -> str:
    """Where it happened, in one line: enough for a report, without a traceback."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f"{last.tb_frame.f_code.co_filename.rpartition('/')[2]}:{last.tb_lineno}" if last is not None else "?"
    return f"this is a bug in cadenza, please report it: {type(error).__name__} at {where}: {error}"


def make_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The whole command line; only the verbs named in `arguments` get their flags, so that `--help` stays quick."""
    parser = Parser(
        prog="cadenza",
        description="How many people an LLM server can hold at a steady typing cadence, and what gives way first.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cadenza {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb, (module, line) in VERBS.items():
        below = verbs.add_parser(verb, help=line, allow_abbrev=False)
        if verb in arguments:
            importlib.import_module(module).configure(below)
    return parser
