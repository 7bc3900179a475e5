"""`cadenza predict`: what a hardware configuration would do with a model, by physics."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from cadenza.hardware.architecture import Architecture
    from cadenza.hardware.system import System

Entry = TypeVar("Entry")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Predict from data sheets whether a model fits cards, how fast it decodes alone and at its peak, what holds it "
        "back, and what another split or link would change. Nothing is measured."
    )
    parser.add_argument("--hardware", metavar="D,…", help="a device for each rank: names (--list) or TOML files")
    parser.add_argument("--model", metavar="NAME", help="a name (--list), the hub's (Qwen/Qwen3-8B), or a TOML file")
    parser.add_argument("--tp", metavar="N", help="tensor-parallel size (default: the devices named)")
    parser.add_argument("--split", metavar="A:B", help="parts of the weights by rank, or 'best' (default: even)")
    parser.add_argument("--link", metavar="NAME", help="what joins the ranks: a name (--list) or a TOML file")
    parser.add_argument("--eager", action="store_true", help="launch kernels one by one, as --enforce-eager does")
    parser.add_argument("--bytes-per-weight", metavar="B", help="2 (default: FP16), 1 for FP8, 0.5 for INT4")
    parser.add_argument("-c", "--concurrency", default="1,2,4,8,16", metavar="C,…", help="default: %(default)s")
    parser.add_argument("--prompt-tokens", default="512", metavar="N", help="prompt of the TTFT (default: %(default)s)")
    parser.add_argument("--context", default="1024", metavar="N", help="tokens a sequence holds (default: %(default)s)")
    parser.add_argument("--gpu-memory-utilization", default="0.92", metavar="F", help="default: %(default)s")
    parser.add_argument("--max-num-seqs", metavar="N", help="default: vLLM's for the smallest card")
    parser.add_argument(
        "--compare", metavar="FILE", help="a published comparison against physics: a name (--list) or a TOML file"
    )
    parser.add_argument("--list", action="store_true", help="name the devices, links, models and comparisons")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the prediction. What does not fit is an answer too: the exit code is 0. Raises UsageError."""
    import msgspec

    from cadenza.errors import UsageError
    from cadenza.hardware.predict import default_limits, predict
    from cadenza.report.prediction import show_prediction

    if args.list:
        return _list(args.json)
    if args.compare is not None:
        return _compare(args)
    if not args.hardware or not args.model:
        raise UsageError(
            "give --hardware and --model, e.g. --hardware mi50-32gb,rx6900xt --model qwen3-8b (see --list)"
        )
    system, architecture = _read_system(args), _read_model(args)
    limits = default_limits(system, _number("--gpu-memory-utilization", args.gpu_memory_utilization, 1.0))
    if args.max_num_seqs is not None:
        limits = msgspec.structs.replace(limits, max_num_seqs=_whole("--max-num-seqs", args.max_num_seqs, 100_000))
    found = predict(
        system,
        architecture,
        tuple(dict.fromkeys(_whole("-c", part, 1_000_000) for part in args.concurrency.split(","))),
        context_tok=_whole("--context", args.context, 100_000_000),
        prompt_tok=_whole("--prompt-tokens", args.prompt_tokens, 100_000_000),
        limits=limits,
    )
    if args.json:
        print_json(found)
    else:
        show_prediction(found)
    return 0


def print_json(value: object) -> None:
    """`value` as indented JSON on stdout."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def _compare(args: argparse.Namespace) -> int:
    from cadenza.errors import UsageError
    from cadenza.hardware.comparison import compare
    from cadenza.hardware.published import load_comparison, parse_comparison
    from cadenza.report.comparison import show_comparison

    if args.hardware or args.model:
        raise UsageError("--compare has its own cards and models: leave out --hardware and --model")
    found = compare(_read(args.compare, load_comparison, parse_comparison))
    if args.json:
        print_json(found)
    else:
        show_comparison(found)
    return 0


def _list(as_json: bool) -> int:
    from cadenza.hardware import catalogue
    from cadenza.hardware.published import comparison_names, load_comparison

    known = {
        "devices": {name: catalogue.device(name).title for name in catalogue.names("device")},
        "links": {name: catalogue.link(name).title for name in catalogue.names("link")},
        "models": {name: catalogue.model(name).hf_name for name in catalogue.names("model")},
        "comparisons": {name: load_comparison(name).title for name in comparison_names()},
    }
    if as_json:
        print_json(known)
        return 0
    for kind, entries in known.items():
        print(kind)
        for name, title in entries.items():
            print(f"  {name:<20} {title}")
    return 0


def _read_system(args: argparse.Namespace) -> "System":
    from cadenza.hardware import catalogue
    from cadenza.hardware.system import EAGER, GRAPH, system

    return system(
        [_read(name, catalogue.device, catalogue.parse_device) for name in args.hardware.split(",")],
        tp=None if args.tp is None else _whole("--tp", args.tp, 1024),
        split=args.split,
        link=None if args.link is None else _read(args.link, catalogue.link, catalogue.parse_link),
        host=EAGER if args.eager else GRAPH,
    )


def _read_model(args: argparse.Namespace) -> "Architecture":
    import msgspec

    from cadenza.hardware import catalogue

    found = _read(args.model, catalogue.model, catalogue.parse_model)
    if args.bytes_per_weight is None:
        return found
    return msgspec.structs.replace(found, bytes_per_weight=_number("--bytes-per-weight", args.bytes_per_weight, 8.0))


def _read(name: str, find: Callable[[str], Entry], parse: Callable[[str, str], Entry]) -> Entry:
    """An entry of the catalogue, or of the user's own file: what ends in .toml is one."""
    from cadenza.errors import UsageError

    if not name.strip().endswith(".toml"):
        return find(name)
    try:
        text = Path(name.strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{name}: {why}") from None
    return parse(text, name.strip())


def _whole(flag: str, text: str, most: int) -> int:
    from cadenza.errors import UsageError
    from cadenza.record import printable

    given = text.strip()
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and 1 <= int(given) <= most):
        raise UsageError(f"{flag} {printable(text, 40)!r} is not a whole number from 1 to {most}")
    return int(given)


def _number(flag: str, text: str, most: float) -> float:
    from cadenza.errors import UsageError
    from cadenza.record import printable

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise UsageError(f"{flag} {printable(text, 40)!r} is not a number above 0, up to {most:g}")
    return value
