"""What was typed, as a `Spec` and `Credentials`."""

import argparse
import os
import random
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from cadenza.cli import values
from cadenza.cli.flags import FLAGS, NAMES
from cadenza.errors import SettingError, UsageError
from cadenza.record import printable
from cadenza.spec import DEFAULT_ENGINE, KEY_VARIABLE, Credentials, Spec, make_spec

QUICK_S = 120.0


def read_spec(args: argparse.Namespace, *, default_concurrency: tuple[int, ...]) -> Spec:
    """Flags over the spec file over the defaults, as one frozen value. Raises UsageError."""
    fields: dict[str, Any] = {"concurrency": default_concurrency} | (_read_file(args.spec) if args.spec else {})
    if args.target:
        args.url = [*args.target, *(args.url or ())]
    given: dict[str, Any] = {}
    for flag in FLAGS:
        text = getattr(args, flag.dest, None)
        if text is not None:
            given[flag.field] = text
            _set(fields, flag.field, text if flag.parse is None else flag.parse(text))
    if args.rate is not None and args.concurrency is None:
        fields["concurrency"] = ()
    fields |= _until_enough(args)
    fields.setdefault("seed", random.SystemRandom().randrange(1 << 31))
    if not fields.get("urls") and not fields.get("engine"):
        fields["engine"] = DEFAULT_ENGINE
    try:
        return make_spec(fields)
    except SettingError as error:
        raise UsageError(_describe(error, given, args.spec)) from None
    except UsageError as error:
        raise UsageError(f"--spec {args.spec}: {error}") from None


def _set(fields: dict[str, Any], field: str, value: Any) -> None:
    table, dot, name = field.rpartition(".")
    if not dot:
        fields[field] = value
        return
    inner = fields.get(table)
    fields[table] = {**(inner if isinstance(inner, dict) else {}), name: value}


def _describe(error: SettingError, given: dict[str, Any], file: str | None) -> str:
    """With flags for the settings' names; a value of the file with the file's."""
    if error.allowed is None or error.field not in given:
        sentence = error.describe(NAMES)
        return sentence if error.allowed is None or file is None else f"--spec {file}: {sentence}"
    typed = given[error.field]
    several = isinstance(typed, list) or error.field in ("concurrency", "rates_per_s")
    item = f"{error.value:g}" if isinstance(error.value, float) else str(error.value)
    hint = next(flag.hint for flag in FLAGS if flag.field == error.field) if isinstance(error.value, str) else ""
    return error.describe(NAMES, printable(item if several else str(typed), 40)) + hint


def read_credentials(args: argparse.Namespace) -> Credentials:
    """Key and header values: from the environment, a file, and the command line, into nothing that is written."""
    key = os.environ.get(KEY_VARIABLE) or None
    if args.api_key_file:
        try:
            key = Path(args.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"--api-key-file {args.api_key_file}: {why}") from None
        if not key:
            raise UsageError(f"--api-key-file {args.api_key_file} is empty")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("the API key contains characters that are not valid in an HTTP header")
    return Credentials(key, tuple(values.split_header(header) for header in getattr(args, "header", None) or ()))


def _until_enough(args: argparse.Namespace) -> dict[str, Any]:
    """What --quick and --max-time set: both imply `--requests auto`, whatever a file has."""
    bounded = args.requests not in (None, "auto") or args.duration is not None
    if args.quick and (bounded or args.max_time is not None):
        raise UsageError("--quick sets --requests and --max-time: leave these and --duration out")
    if args.max_time is not None and bounded:
        raise UsageError("--max-time is for --requests auto: leave it out, or --requests N and --duration")
    if args.quick:
        return {"requests": "auto", "max_time_s": QUICK_S, "duration_s": None}
    return {} if args.max_time is None else {"requests": "auto", "duration_s": None}


def _read_file(name: str) -> dict[str, Any]:
    try:
        data = Path(name).read_bytes()
        if name.endswith(".json"):
            value = msgspec.json.decode(data)
            value = value.get("spec", value) if isinstance(value, dict) else value
        else:
            value = tomllib.loads(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"--spec {name}: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise UsageError(f"--spec {name}: not a table of settings")
    return value
