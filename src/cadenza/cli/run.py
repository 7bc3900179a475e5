"""`cadenza run`: one point of the grid, with the flags of `sweep`."""

import argparse

from cadenza.cli.flags import add_flags
from cadenza.cli.options import read_credentials, read_spec
from cadenza.errors import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = "Measure one point: one model at one concurrency, one rate, or both."
    add_flags(parser, grid=False)


def run(args: argparse.Namespace) -> int:
    """Measure and report; returns the exit code."""
    from cadenza.cli.measure import measure

    spec = read_spec(args, default_concurrency=(1,))
    cells = (len(spec.models) or 1) * (len(spec.concurrency) or 1) * (len(spec.rates_per_s) or 1)
    if cells != 1 or spec.models == ("all",):
        raise UsageError("run measures one point: give one model, one -c and one --rate, or use `cadenza sweep`")
    return measure(spec, read_credentials(args), args)
