"""`cadenza engine`: serve the embedded engine, for trying things out without a GPU."""

import argparse
import json
import math
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

from cadenza.engine import profile as profiles
from cadenza.engine.server import serve
from cadenza.errors import UsageError

KEY_VARIABLE = "CADENZA_ENGINE_API_KEY"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Serve an OpenAI-compatible engine whose timing follows a published sweep. Its numbers are simulated."
    )
    parser.add_argument(
        "profile",
        nargs="?",
        default="mi50-rx6900xt",
        metavar="PROFILE",
        help=f"one of: {', '.join(profiles.names())} (default: %(default)s)",
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="P", help="port, 0 for any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="times faster than real time (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=f"ask clients for the key in FILE; the variable {KEY_VARIABLE} does the same",
    )
    parser.add_argument("--exit-with-parent", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; UsageError for arguments that make no sense. Returns the exit code."""
    speed: float = args.speed
    if not (math.isfinite(speed) and speed > 0):
        raise UsageError(f"--speed must be a finite number above 0, not {speed}")
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port must be between 0 and 65535, not {args.port}")
    profile = profiles.load(args.profile)
    key = _api_key(args.api_key_file)
    if args.exit_with_parent:
        serve(profile, args.host, args.port, speed, key, ready=_announce, stop=_parent_is_gone)
    else:
        serve(profile, args.host, args.port, speed, key, ready=_greeting(profile, speed, key is not None))
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
