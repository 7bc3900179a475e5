"""`cadenza engine`: serve the embedded engine, for trying things out without a GPU."""

import argparse
import json
import math
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cadenza.engine import profile as profiles
from cadenza.engine.api.faults import KINDS as FAULTS
from cadenza.engine.api.faults import Faults
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.api.server import serve
from cadenza.engine.api.text import output_token
from cadenza.engine.board.boards import Board
from cadenza.engine.board.card import names as card_names
from cadenza.engine.board.faults import KINDS as BOARD_FAULTS
from cadenza.engine.board.faults import parse_fault
from cadenza.engine.board.shadow import Shadow
from cadenza.engine.build import build_core
from cadenza.engine.core.sequence import Limits
from cadenza.engine.timing_laws import LAWS, laws_of
from cadenza.errors import UsageError
from cadenza.hardware.catalogue import names as hardware_names

KEY_VARIABLE = "CADENZA_ENGINE_API_KEY"
DEFAULT_PROFILE = "mi50-rx6900xt"
_LIMIT_FLAGS = ("max_num_seqs", "block_size", "max_num_batched_tokens", "gpu_memory_utilization")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Serve an OpenAI-compatible engine: vLLM's scheduler over a timing law, its metrics and its mistakes. Its "
        "numbers are simulated."
    )
    parser.add_argument(
        "profile",
        nargs="?",
        default=DEFAULT_PROFILE,
        metavar="PROFILE",
        help="a profile (--list), devices joined by commas (physics), or a .toml file (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list profiles, their models and laws, and devices")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    listen = parser.add_argument_group("where")
    listen.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: %(default)s)")
    listen.add_argument("--port", type=int, default=8000, metavar="P", help="0: any free one (default: %(default)s)")
    listen.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"ask clients for the key in FILE; the variable {KEY_VARIABLE} does the same",
    )
    pace = parser.add_argument_group("how fast")
    pace.add_argument("--speed", type=float, default=1.0, metavar="X", help="times real time (default: %(default)s)")
    pace.add_argument("--timing", metavar="LAW", help=f"{', '.join(LAWS)} (default: the first the profile has)")
    limits = parser.add_argument_group("the engine's limits, as vLLM's flags")
    limits.add_argument("--max-num-seqs", metavar="N", help="sequences that run at once")
    limits.add_argument("--max-num-batched-tokens", metavar="N", help="tokens a step computes at most")
    limits.add_argument("--block-size", metavar="N", help="tokens in a KV block")
    limits.add_argument("--gpu-memory-utilization", metavar="F", help="share of the memory it takes")
    others = ", ".join(name for name in Limits.__struct_fields__ if name not in _LIMIT_FLAGS)
    limits.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"another one: {others}")
    trouble = parser.add_argument_group("trouble")
    trouble.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND:RATE",
        help=f"fail that share of the requests, KIND:RATE[:S]; kinds: {', '.join(FAULTS)}; or all of it from "
        "T on: freeze:S@T, hang:S@T, slow:S@TxFACTOR",
    )
    trouble.add_argument("--disable-log-stats", action="store_true", help="no vllm: series on /metrics, as vLLM's flag")
    trouble.add_argument("--board", type=Path, metavar="DIR", help="show the cards in DIR as amdgpu's files would")
    trouble.add_argument(
        "--board-fault",
        action="append",
        default=[],
        metavar="KIND",
        help=f"KIND[:CARD][@S], after S seconds; kinds: {', '.join(BOARD_FAULTS)}",
    )
    trouble.add_argument("--seed", type=int, default=0, metavar="S", help="of chance in all of this (default: 0)")
    parser.add_argument("--exit-with-parent", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; UsageError for arguments that make no sense. Returns the exit code."""
    if args.list:
        return _list(as_json=args.json)
    speed: float = args.speed
    if not (math.isfinite(speed) and speed > 0):
        raise UsageError(f"--speed must be a finite number above 0, not {speed}")
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port must be between 0 and 65535, not {args.port}")
    if args.board_fault and args.board is None:
        raise UsageError("--board-fault needs --board DIR, a folder to show it in")
    profile = profiles.load(args.profile)
    profile = msgspec.structs.replace(profile, limits=_limits(profile.limits, args))
    key = _api_key(args.api_key_file)
    core = build_core(profile, args.timing, args.seed, output_token)
    api = HttpApi(
        profile,
        api_key=key,
        epoch_s=int(time.time()),
        core=core,
        faults=Faults.parse(args.fault, args.seed),
        log_stats=not args.disable_log_stats,
    )
    tick = None if args.board is None else _shadow(profile, api, args).tick
    if args.exit_with_parent:
        serve(api, args.host, args.port, speed, ready=_announce, stop=_parent_is_gone, tick=tick)
    else:
        serve(api, args.host, args.port, speed, ready=_greeting(profile, speed, key is not None), tick=tick)
    return 0


def _limits(limits: Limits, args: argparse.Namespace) -> Limits:
    """The profile's limits with the flags' in their place."""
    given = {name: value for name in _LIMIT_FLAGS if (value := getattr(args, name)) is not None}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals or name not in Limits.__struct_fields__:
            raise UsageError(f"--set takes NAME=VALUE with a NAME of {', '.join(Limits.__struct_fields__)}, not {pair}")
        given[name] = value
    merged = {name: getattr(limits, name) for name in Limits.__struct_fields__} | given
    try:
        return msgspec.convert(merged, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the engine's limits make no sense: {error}") from None


def _shadow(profile: profiles.Profile, api: HttpApi, args: argparse.Namespace) -> Shadow:
    if profile.system is None:
        raise UsageError(f"the profile {profile.name} does not say which cards it has: --board needs [system] devices")
    missing = [name for name in profile.system.devices if name not in card_names()]
    if missing:
        raise UsageError(f"--board can show {', '.join(card_names())}, not {', '.join(missing)}")
    board = Board.for_devices(profile.system.devices, args.seed)
    for text in args.board_fault:
        board.inject(parse_fault(text), 0)
    shadow = Shadow(api.core, board, profile.limits.gpu_memory_utilization, args.board)
    shadow.tick(0)
    return shadow


def _list(*, as_json: bool) -> int:
    found = [profiles.load(name) for name in profiles.names()]
    devices = hardware_names("device")
    if as_json:
        listed = [
            {
                "name": profile.name,
                "hardware": profile.hardware,
                "models": {model.name: laws_of(profile, model) for model in profile.models},
            }
            for profile in found
        ]
        print(json.dumps({"profiles": listed, "devices": devices}))
        return 0
    for profile in found:
        print(f"{profile.name}  {profile.hardware}")
        for model in profile.models:
            print(f"  {model.name}  ({', '.join(laws_of(profile, model))})")
    print(f"devices, alone or joined by commas (physics; every model that fits): {', '.join(devices)}")
    print("or a .toml file: `cadenza fit RUN -o mine.toml` makes one of your own server")
    return 0


def _api_key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"the API key file {file} cannot be read: {reason}") from None
    if not key:
        raise UsageError(f"the API key file {file} is empty")
    return key


def _announce(url: str) -> None:
    print(json.dumps({"url": url}), flush=True)


def _parent_is_gone() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(sys.stdin.fileno(), 4096)


def _greeting(profile: profiles.Profile, speed: float, keyed: bool) -> Callable[[str], None]:
    def greet(url: str) -> None:
        pace = "" if speed == 1 else f", {speed:g} times faster than real time"
        header = f" -H 'Authorization: Bearer ${KEY_VARIABLE}'" if keyed else ""
        model = profile.models[0].name
        body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 32, "stream": True})
        print(f"{url}  simulated: {profile.hardware}{pace}")
        for served in profile.models:
            print(f"  {served.name}{'  (thinking)' if served.thinking else ''}")
        print(f"Try: curl -N {url}/v1/completions -H 'Content-Type: application/json'{header} -d '{body}'")
        print("Ctrl-C stops it.", flush=True)

    return greet
