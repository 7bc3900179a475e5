"""`cadenza compare-hardware`: a published comparison of four configurations beside what physics says of them."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Print a published table of four configurations (MI50, RX 6900 XT, both with dense and MoE models) beside what "
        "the hardware model predicts, and explain where they disagree. Nothing is measured."
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    from cadenza.cli.predict import print_json
    from cadenza.hardware.comparison import compare
    from cadenza.report.comparison import show_comparison

    if args.json:
        print_json(compare())
    else:
        show_comparison(compare())
    return 0
