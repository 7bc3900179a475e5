"""`cadenza calibrate`: what this machine's client can do, and how right its stamps are."""

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Measure this machine's client against a server of known timing (another process, loopback): how many events "
        "and requests a second one process can hold, and how far its stamps are from the truth. Takes half a minute; "
        "later runs say how much of the ceiling they used."
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--dry-run", action="store_true", help="measure and print, keep nothing")


def run(args: argparse.Namespace) -> int:
    """Measure, print, keep; returns the exit code."""
    import msgspec
    import numpy as np

    from cadenza.cli.main import EXIT_INTERRUPTED
    from cadenza.measure.calibrate import Step, calibrate
    from cadenza.measure.signals import stop_on_signals
    from cadenza.store.calibration import keep_calibration

    def watch(step: Step) -> None:
        print(
            f"{step.streams:8,} {step.events_per_s:10,.0f} {step.requests_per_s:12,.0f} {100 * step.cpu_share:7.0f} %"
            f" {1e6 * step.cpu_share / step.events_per_s:10.1f}"
            f" {np.percentile(step.stamp_error_us, 50):10.0f} {np.percentile(step.stamp_error_us, 99):8.0f}"
            f" {np.percentile(step.lag_ms, 99):10.2f} {np.percentile(step.read_lag_ms, 99):10.2f}",
            file=sys.stderr,
            flush=True,
        )

    print(
        " streams   events/s   requests/s   CPU     µs/event   stamp error µs     lag p99 ms\n"
        "                                                        p50      p99   dispatch       read",
        file=sys.stderr,
    )
    with stop_on_signals() as stop:
        result = calibrate(watch, stop)
        if stop():
            return EXIT_INTERRUPTED
    path = None if args.dry_run else keep_calibration(result)
    if args.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        return 0
    stamps = "the kernel's" if result.kernel_stamps else "the client's own reads"
    print(
        f"One process of the client holds {result.events_per_s:,.0f} events/s, "
        f"or {result.requests_per_s:,.0f} requests/s"
    )
    print(
        f"Stamps are {stamps}: {result.stamp_error_us_p50:.0f} µs after the server handed over the event, "
        f"p99 {result.stamp_error_us_p99:.0f} µs"
    )
    print(f"A free slot is filled within {result.dispatch_lag_ms_p99:.2f} ms (p99, at a quarter of that load)")
    if path is not None:
        print(f"Kept in {path}; `cadenza run` and `cadenza sweep` hold their load against it")
    return 0
