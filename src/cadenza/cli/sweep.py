"""`cadenza sweep`: a server over a grid of concurrencies, rates and models."""

import argparse

from cadenza.cli.flags import add_flags
from cadenza.cli.options import read_credentials, read_spec

DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Measure a server at each concurrency (closed loop), each rate (open loop), or each pair (capped), "
        "and report throughput, TTFT, TPOT, scaling and drift."
    )
    add_flags(parser, grid=True)


def run(args: argparse.Namespace) -> int:
    """Measure and report; returns the exit code."""
    from cadenza.cli.measure import measure

    spec = read_spec(args, default_concurrency=DEFAULT_CONCURRENCY)
    return measure(spec, read_credentials(args), args)
