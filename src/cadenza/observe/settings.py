"""The settings of a bundle: engines, exporters, addresses of the servers, SLO."""

import ipaddress
import math
import re
from typing import NamedTuple

import msgspec

from cadenza.errors import UsageError
from cadenza.record import printable

# A password would end up in a world-readable file and in labels.
_NO_SECRETS = "no password: write it into prometheus.yml as basic_auth or authorization, with password_file"
_BRACKETS = " (IPv6 in brackets: [::1]:PORT)"
_HOST = r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]{{1,5}})")
_URL = re.compile(
    rf"(?:(?P<scheme>https?)://)?(?P<host>{_HOST})(?::(?P<port>[0-9]{{1,5}}))?(?P<path>/[A-Za-z0-9_./~%-]*)?"
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`engines`: base URLs; `exporters`: HOST:PORT; `prometheus`, `alertmanager`: HOST:PORT that the servers listen on;
    `slo_ttft_p99_s`: bound on P99 of the time to first token, in seconds."""

    engines: tuple[str, ...] = ("http://127.0.0.1:8000",)
    exporters: tuple[str, ...] = ("127.0.0.1:9101",)
    prometheus: str = "127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    slo_ttft_p99_s: float = 2.0


class Target(NamedTuple):
    """The address of an engine's /metrics page."""

    scheme: str
    address: str
    path: str

    @property
    def instance(self) -> str:
        """The label `instance`: with the path, since several engines behind a gateway share an address."""
        return self.address + self.path.removesuffix("/metrics")


def read_engine(url: str) -> Target:
    """An engine's base URL, with or without /v1. UsageError: no URL, or it contains a password."""
    match = _URL.fullmatch(url)
    if match is None:
        if "@" in url or "?" in url or "#" in url:
            raise UsageError(f"--engine-url takes {_NO_SECRETS}, and no query")
        raise UsageError(
            f"--engine-url {printable(url, 80)!r} is no URL of a server: write it as http://HOST:PORT{_BRACKETS}"
        )
    scheme = match["scheme"] or "http"
    port = match["port"] or ("443" if scheme == "https" else "80")
    address = read_address("--engine-url", f"{match['host']}:{port}")
    path = (match["path"] or "").rstrip("/").removesuffix("/metrics").removesuffix("/v1").rstrip("/")
    return Target(scheme, address, f"{path}/metrics")


def read_address(flag: str, text: str) -> str:
    """HOST:PORT, validated. UsageError names the flag."""
    if "@" in text:
        raise UsageError(f"{flag} takes {_NO_SECRETS}")
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise UsageError(f"{flag} {printable(text, 80)!r} is not HOST:PORT, as in 127.0.0.1:9101{_BRACKETS}")
    if not 1 <= int(match[2]) <= 65535:
        raise UsageError(f"{flag} {text}: {match[2]} is no port (1 to 65535)")
    if match[1].startswith("["):
        try:
            ipaddress.IPv6Address(match[1][1:-1])
        except ValueError:
            raise UsageError(f"{flag} {text}: {match[1]} is no IPv6 address") from None
    return text


def check(settings: Settings) -> Settings:
    """The settings without duplicate targets. UsageError for the first invalid one."""
    engines: dict[Target, str] = {}
    for url in settings.engines:
        engines.setdefault(read_engine(url), url)
    for address in settings.exporters:
        read_address("--exporter", address)
    for flag, address in (("--prometheus", settings.prometheus), ("--alertmanager", settings.alertmanager)):
        if not is_loopback(read_address(flag, address)):
            raise UsageError(
                f"{flag} {address} is reachable from other machines without a password; use 127.0.0.1:PORT, "
                "behind a proxy with authentication if needed"
            )
    if settings.prometheus == settings.alertmanager:
        raise UsageError(f"--prometheus and --alertmanager are both {settings.prometheus}: they need different ports")
    if not (math.isfinite(settings.slo_ttft_p99_s) and settings.slo_ttft_p99_s > 0):
        raise UsageError(f"--slo-ttft-p99-s {settings.slo_ttft_p99_s:g} is not a number of seconds above 0")
    return msgspec.structs.replace(
        settings, engines=tuple(engines.values()), exporters=tuple(dict.fromkeys(settings.exporters))
    )


def node_of(address: str) -> str:
    """The label `node` that prometheus.yml makes of HOST:PORT: the host, `localhost` for all names of this machine."""
    host = address.rpartition(":")[0]
    return "localhost" if host == "host.docker.internal" or is_loopback(address) else host


def find_alone(settings: Settings) -> list[str]:
    """A sentence for each engine without an exporter on its node: alerts that join card and engine never fire there."""
    nodes = {node_of(address) for address in settings.exporters}
    return [
        f"no exporter is at {node_of(target.address)}, where the engine {target.instance} is: GpuHung and joules "
        f"per token need both with the same host name (--exporter {node_of(target.address)}:9101)"
        for target in map(read_engine, settings.engines)
        if node_of(target.address) not in nodes
    ]


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT can be reached from this machine alone."""
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
