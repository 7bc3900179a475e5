"""Entry point: finds the verb, runs it, and turns our own errors into one sentence and an exit code."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from cadenza import __version__
from cadenza.errors import CadenzaError

# verb → (module, one line of help). A module is imported only when its verb is used: `--help` stays quick.
VERBS = {
    "sweep": ("cadenza.cli.sweep", "measure a server over a grid of concurrencies or rates"),
    "run": ("cadenza.cli.run", "measure one point of that grid"),
    "show": ("cadenza.cli.show", "report a run, whole or broken off"),
    "ls": ("cadenza.cli.ls", "list the runs in a folder"),
    "check": ("cadenza.cli.check", "say whether a run can be believed, check by check"),
    "calibrate": ("cadenza.cli.calibrate", "measure what this machine's client can hold"),
    "exporter": ("cadenza.cli.exporter", "serve what the cards, the host and the kernel log say, for Prometheus"),
    "observe": ("cadenza.cli.observe", "Prometheus, alerts and dashboards for an engine and its cards"),
    "top": ("cadenza.cli.top", "watch a server, or a run that goes on, in the terminal"),
    "predict": ("cadenza.cli.predict", "predict what cards would do with a model (physics, nothing is measured)"),
    "compare-hardware": ("cadenza.cli.compare_hardware", "a published comparison, beside what physics says of it"),
    "fit": ("cadenza.cli.fit", "make an engine profile from a run, to simulate that server"),
    "probe": ("cadenza.cli.probe", "say what a server is and how it answers"),
    "engine": ("cadenza.cli.engine", "serve the embedded engine (its numbers are simulated)"),
}

EXIT_INTERRUPTED = 130
_EPILOG = """\
examples:
  cadenza sweep                                   the embedded engine, no server needed
  cadenza sweep --url http://localhost:8000       your server, at C = 1, 2, 4, 8, 16
  cadenza run --url http://localhost:8000 -c 32   one point
  cadenza show runs/NAME --markdown               a table for an issue or a wiki

exit codes: 0 every point is valid, 1 a point is invalid or something failed here,
            2 a flag or file makes no sense, 3 the server cannot be reached or refuses, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = make_parser(arguments)
        args = parser.parse_args(arguments)
        if args.verb is None:
            parser.print_help()
            return 0
        code: int = importlib.import_module(VERBS[args.verb][0]).run(args)
        if sys.stdout is not None:  # closed before we began
            sys.stdout.flush()
        return code
    except CadenzaError as error:
        print(f"cadenza: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader has gone (`| head`): nobody is left to tell. Keep the interpreter from trying once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        print(f"cadenza: {_describe_bug(error)}", file=sys.stderr)
        return 1


def _describe_bug(error: Exception) -> str:
    """Where it happened, in one line: enough for a report, and no traceback in a user's face."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f"{last.tb_frame.f_code.co_filename.rpartition('/')[2]}:{last.tb_lineno}" if last is not None else "?"
    return f"this is a bug in cadenza, please report it: {type(error).__name__} at {where}: {error}"


def make_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The whole command line; only the verbs named in `arguments` get their flags, so that `--help` stays quick."""
    parser = argparse.ArgumentParser(
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
