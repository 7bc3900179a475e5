"""What a bundle is made for: which engines, which exporters, on which addresses, and what was promised."""

import math
import re
from typing import NamedTuple

import msgspec

from cadenza.errors import UsageError
from cadenza.observe.alerts import DEFAULT_SLO_TTFT_P99_S
from cadenza.record import printable

_HOST = r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]{{1,5}})")
_URL = re.compile(
    rf"(?:(?P<scheme>https?)://)?(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?(?P<path>/[A-Za-z0-9_./~%-]*)?"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`engines`: base URLs; the others: HOST:PORT, `prometheus` and `alertmanager` of the servers to be started."""

    engines: tuple[str, ...] = ("http://127.0.0.1:8000",)
    exporters: tuple[str, ...] = ("127.0.0.1:9101",)
    prometheus: str = "127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    slo_ttft_p99_s: float = DEFAULT_SLO_TTFT_P99_S


class Target(NamedTuple):
    """Where an engine's /metrics page is."""

    scheme: str
    address: str
    path: str


def read_engine(url: str) -> Target:
    """An engine's base URL, with or without /v1. UsageError: it is none, or has a password in it."""
    found = _URL.fullmatch(url)
    if found is None:
        if "@" in url or "?" in url or "#" in url:
            # A password would be written into a file, and into every label.
            raise UsageError("--engine-url takes no password and no query: /metrics needs neither in vLLM")
        raise UsageError(f"--engine-url {printable(url, 80)!r} is no URL of a server: write it as http://HOST:PORT")
    scheme = found["scheme"] or "http"
    address = read_address("--engine-url", f"{found['host']}:{found['port'] or (443 if scheme == 'https' else 80)}")
    path = (found["path"] or "").rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")
    return Target(scheme, address, f"{path}/metrics")


def read_address(flag: str, text: str) -> str:
    """HOST:PORT, checked. UsageError names the flag."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise UsageError(f"{flag} {printable(text, 80)!r} is not HOST:PORT, as in 127.0.0.1:9101")
    return text


def check(settings: Settings) -> Settings:
    """The settings as given. UsageError for the first that makes no sense."""
    for url in settings.engines:
        read_engine(url)
    for address in settings.exporters:
        read_address("--exporter", address)
    for flag, address in (("--prometheus", settings.prometheus), ("--alertmanager", settings.alertmanager)):
        if not is_loopback(read_address(flag, address)):
            raise UsageError(
                f"{flag} {address} is not on this machine alone: it has no password; write 127.0.0.1:PORT, and put a "
                "proxy with one in front of it"
            )
    if not (math.isfinite(settings.slo_ttft_p99_s) and settings.slo_ttft_p99_s > 0):
        raise UsageError(f"--slo-ttft-p99-s {settings.slo_ttft_p99_s:g} is not a number of seconds above 0")
    return settings


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT can be reached from this machine alone."""
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
