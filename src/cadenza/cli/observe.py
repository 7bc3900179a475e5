"""`cadenza observe`: Prometheus, alerts and dashboards for an engine and its cards."""

import argparse
import shlex
import sys
import threading
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Write a folder with all that Prometheus, Alertmanager and Grafana need to watch an engine and its cards; "
        "check it; run Prometheus on it."
    )
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    init = actions.add_parser("init", help="write the folder, or bring it up to date", allow_abbrev=False)
    init.description = (
        "Write configuration, rules, alerts, their tests, dashboards and a README. Again without flags: as last time. "
        "A file that you have changed is left alone."
    )
    init.add_argument("folder", metavar="DIR", type=_folder)
    init.add_argument(
        "--engine-url",
        action="append",
        metavar="URL",
        help="base URL of an engine, repeatable (default: http://127.0.0.1:8000)",
    )
    init.add_argument(
        "--exporter",
        action="append",
        metavar="HOST:PORT",
        help="cadenza exporter, repeatable (default: 127.0.0.1:9101)",
    )
    init.add_argument(
        "--slo-ttft-p99-s", type=float, metavar="S", help="alert above this P99 of the time to first token (default: 2)"
    )
    init.add_argument("--prometheus", metavar="HOST:PORT", help="where it will be (default: 127.0.0.1:9090)")
    init.add_argument("--alertmanager", metavar="HOST:PORT", help="where it will be (default: 127.0.0.1:9093)")
    init.add_argument("--force", action="store_true", help="overwrite files that were changed as well")
    init.add_argument("--json", action="store_true", help="print what became of each file as JSON")
    check = actions.add_parser(
        "check", help="check it, with promtool and amtool too where installed", allow_abbrev=False
    )
    check.description = (
        "Check names, PromQL, rules with their tests, dashboards and configuration. Exit code 1: something is wrong."
    )
    check.add_argument("folder", metavar="DIR", type=_folder)
    check.add_argument("--json", action="store_true", help="print the checks as JSON")
    up = actions.add_parser("up", help="run Prometheus on it until Ctrl-C", allow_abbrev=False)
    up.description = (
        "Run an installed Prometheus on the folder, and Alertmanager where there is one: in the foreground, on this "
        "machine alone, data below DIR/data."
    )
    up.add_argument("folder", metavar="DIR", type=_folder)


def _folder(text: str) -> Path:
    # Path("") is the current folder, which nobody means who writes "$UNSET".
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a folder")
    return Path(text)


def run(args: argparse.Namespace) -> int:
    """Do what `args` name; returns the exit code."""
    actions = {"init": _init, "check": _check, "up": _up}
    return actions[args.action](args)


def _init(args: argparse.Namespace) -> int:
    import msgspec

    from cadenza.observe.bundle import read_manifest, write
    from cadenza.observe.settings import Settings, find_alone

    before = read_manifest(args.folder)
    given = {
        "engines": tuple(args.engine_url) if args.engine_url else None,
        "exporters": tuple(args.exporter) if args.exporter else None,
        "prometheus": args.prometheus,
        "alertmanager": args.alertmanager,
        "slo_ttft_p99_s": args.slo_ttft_p99_s,
    }
    settings = msgspec.structs.replace(
        before.settings if before is not None else Settings(),
        **{name: value for name, value in given.items() if value is not None},
    )
    written = write(settings, args.folder, force=args.force)
    for sentence in find_alone(settings):
        _say(f"cadenza: note: {sentence}")
    if args.json:
        _print_json(written._asdict())
        return 0
    for outcome, names in (("wrote", written.created), ("updated", written.updated)):
        for name in names:
            print(f"{outcome} {args.folder / name}")
    if written.unchanged:
        print(f"{len(written.unchanged)} file(s) were as they should be")
    for name in written.kept:
        _say(f"cadenza: kept {args.folder / name}: it was changed since it was written (--force overwrites it)")
    folder = shlex.quote(str(args.folder))
    _say(f"\nNext ({args.folder}/README.md has other ways):")
    _say(f"  cadenza observe check {folder}\n  cadenza observe up {folder}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from cadenza.observe.check import check

    checks = []
    for one in check(args.folder):
        checks.append(one)
        if args.json:
            continue
        outcome = "FAILED" if one.wrong else "skipped" if one.skipped else "ok"
        print(f"{outcome:<8} {one.name}")
        for sentence in one.wrong:
            print(f"         {sentence}")
        if one.skipped:
            print(f"         {one.skipped}")
        sys.stdout.flush()
    if args.json:
        _print_json([one._asdict() for one in checks])
    return int(any(one.wrong for one in checks))


def _up(args: argparse.Namespace) -> int:
    from cadenza.measure.signals import stop_on_signals
    from cadenza.observe.up import run as run_servers

    lock, gone = threading.Lock(), threading.Event()

    def say(text: str) -> None:
        """From any thread; nobody reads any more: that ends it, as everywhere."""
        try:
            with lock:
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()
        except BrokenPipeError:
            gone.set()

    with stop_on_signals() as stop:
        run_servers(args.folder, lambda: stop() or gone.is_set(), say)
    _say("stopped")
    return 0


def _print_json(value: object) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
