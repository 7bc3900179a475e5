"""From a base URL to a place to connect to, resolved once, before any clock runs."""

import socket
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from cadenza.errors import TargetError, UsageError
from cadenza.load.transport import Origin
from cadenza.record import printable

_CONNECT_S = 5.0


class Target(NamedTuple):
    """One base URL. `prefix` is what stands before `/v1/…`; `authority` goes into the Host header."""

    url: str
    origin: Origin
    authority: str
    prefix: str

    def path(self, path: str) -> str:
        """The request target for an API path such as `/v1/models`."""
        return self.prefix + path


# The embedded engine in this very process (`load.memory`): there is nothing to look up.
IN_PROCESS = Target("the embedded engine", Origin("engine", ("127.0.0.1", 0)), "engine", "")


def resolve(url: str) -> Target:
    """Look the host up and keep the first of its addresses that takes a connection (localhost may have two).

    `url` is the base: with or without a trailing `/v1`. Raises UsageError for what is no URL, TargetError for a
    server that is not there.
    """
    parts = _split(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    address = _reachable_address(url, host, port)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(url=url, origin=Origin(host, address, tls), authority=parts.netloc, prefix=path)


def _split(url: str) -> SplitResult:
    shown = printable(url, 120)
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where the port is no number
    except ValueError as error:
        raise UsageError(f"--url {shown}: {error}") from None
    if parts.username or parts.password:
        raise UsageError("--url holds a user name or password: give it as a header (--header) or by --api-key-file")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {shown} is not a base URL: write it as http://HOST:PORT")
    if parts.query or parts.fragment:
        raise UsageError(f"--url {shown}: a base URL has no '?' or '#' in it")
    return parts


def _reachable_address(url: str, host: str, port: int) -> tuple[str, int]:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as sock:
            name = sock.getpeername()
            return str(name[0]), int(name[1])
    except socket.gaierror as error:
        raise TargetError(f"{url}: there is no host {host!r} ({error.strerror}): check the name") from None
    except TimeoutError:
        raise TargetError(
            f"{url}: no connection to port {port} within {_CONNECT_S:g} s: is a firewall between?"
        ) from None
    except ConnectionRefusedError:
        raise TargetError(
            f"{url}: nothing listens on port {port}: is the server running, and is the port right?"
        ) from None
    except OSError as error:
        raise TargetError(f"{url}: cannot connect: {error.strerror or error}") from None
