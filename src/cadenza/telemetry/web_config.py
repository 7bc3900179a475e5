"""The web-config file of the Prometheus exporters: TLS, client certificates and basic auth.

Format: github.com/prometheus/exporter-toolkit, docs/web-configuration.md. What is not listed in `WebConfig` is refused
by name, since a security setting that is read over is worse than none. Paths are relative to the file's folder.
"""

import base64
import binascii
import hmac
import importlib.util
import re
import secrets
import ssl
import sys
import threading
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from cadenza.errors import UsageError
from cadenza.record import printable

_FILE_BYTES = 256 << 10
# bcrypt ignores the rest of a longer password.
_PASSWORD_BYTES = 72
_CREDENTIALS_BYTES = 2048
_CACHED = 64
# 2^17 rounds are about ten seconds, for every wrong password.
_HASH = re.compile(r"\$2[aby]\$(?:0[4-9]|1[0-7])\$[./A-Za-z0-9]{53}")
_LIKE_A_HASH = re.compile(r"\$[0-9][a-z]?\$\S*")
Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
_VERSIONS: dict[Version, ssl.TLSVersion] = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_HEADERS = frozenset(
    {
        "Content-Security-Policy",
        "Strict-Transport-Security",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-XSS-Protection",
    }
)


class TlsServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`client_auth_type`: with a `client_ca_file`, clients must present a certificate of it by default."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] | None = None
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"


class HttpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`http2` is accepted, and not spoken. `headers` go out with every answer."""

    http2: bool = False
    headers: dict[str, str] = {}


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`basic_auth_users`: bcrypt hash by user name."""

    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = HttpServerConfig()
    basic_auth_users: dict[str, str] = {}


def load(file: Path) -> WebConfig:
    """Read and check `file`; UsageError names what is wrong, and never a hash."""
    try:
        with file.open("rb") as stream:
            text = stream.read(_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the web config {file} cannot be read: {error.strerror}") from None
    if len(text) > _FILE_BYTES:
        raise UsageError(f"the web config {file} is larger than {_FILE_BYTES >> 10} KiB: is it the right file?")
    try:
        # An empty file is a config without settings.
        config = msgspec.yaml.decode(text, type=WebConfig | None) or WebConfig()
    except msgspec.ValidationError as error:
        raise UsageError(f"{file}: invalid web config: {_quote(str(error))}") from None
    except (ValueError, RecursionError) as error:
        # YAML's own message may quote the text, hashes and all: only the place is reported.
        at = re.search(r"line \d+", str(error))
        raise UsageError(f"the web config {file} is no YAML text{f' ({at[0]})' if at else ''}") from None
    if config.basic_auth_users and importlib.util.find_spec("bcrypt") is None:
        raise UsageError(f"the web config {file} has basic_auth_users: that needs `pip install 'cadenza[auth]'`")
    for user, hashed in config.basic_auth_users.items():
        if ":" in user or not _HASH.fullmatch(hashed):
            raise UsageError(
                f"the web config {file}: the user '{_quote(user)}' needs a name without a colon and a bcrypt hash of "
                "cost 4 to 17 (`htpasswd -nBC 10 USER` makes one)"
            )
    for name, value in config.http_server_config.headers.items():
        if name not in _HEADERS or not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"the web config {file}: http_server_config.headers takes {', '.join(sorted(_HEADERS))}, "
                f"each a line of ASCII, not '{_quote(name)}'"
            )
    return config


def make_context(config: TlsServerConfig, folder: Path) -> ssl.SSLContext:
    """The server side of TLS by `config`, files below `folder`; UsageError where one of them is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    least, most = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    if least > most:
        raise UsageError(f"the web config: min_version {config.min_version} is above max_version {config.max_version}")
    context.minimum_version, context.maximum_version = least, most
    context.set_alpn_protocols(["http/1.1"])
    cert, key = folder / config.cert_file, folder / config.key_file
    try:
        # A key with a passphrase would ask for it on the terminal.
        context.load_cert_chain(cert, key, password=b"")
    except (OSError, ssl.SSLError) as error:
        files = f"the certificate {_quote(str(cert))} and the key {_quote(str(key))}"
        raise UsageError(f"{files} cannot be used: {_why(error)}") from None
    wanted = config.client_auth_type
    if config.client_ca_file is None:
        if wanted not in (None, "NoClientCert"):
            raise UsageError(f"the web config: client_auth_type {wanted} needs a client_ca_file")
        return context
    if wanted == "NoClientCert":
        raise UsageError("the web config: a client_ca_file with client_auth_type NoClientCert would check nobody")
    authority = folder / config.client_ca_file
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the client authority {_quote(str(authority))} cannot be used: {_why(error)}") from None
    context.verify_mode = ssl.CERT_OPTIONAL if wanted == "VerifyClientCertIfGiven" else ssl.CERT_REQUIRED
    return context


def _quote(text: str) -> str:
    """A piece of the file in a message: one line, without what may be a hash that stands in the wrong place."""
    return printable(_LIKE_A_HASH.sub("(a hash)", text))


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "they are no PEM files"
    return error.strerror or str(error)


class BasicAuth:
    """Who may come in. bcrypt takes 50 ms and more, so recent answers are kept: keyed digests, in memory only.

    Comparisons are bcrypt's own (constant time) or look-ups of a digest under a random key.
    """

    def __init__(self, users: dict[str, str]) -> None:
        self._users = {user.encode(): hashed.encode() for user, hashed in users.items()}
        # A stranger's password is checked against somebody's hash: that a name is unknown must take as long.
        self._anybody = next(iter(self._users.values()), b"")
        self._key = secrets.token_bytes(32)
        # Apart, so that guessing does not push a scraper's right password out.
        self._right: dict[bytes, None] = {}
        self._wrong: dict[bytes, None] = {}
        # One check at a time: guessing can keep one core busy, not all of them.
        self._turn = threading.Lock()

    @property
    def is_required(self) -> bool:
        """Whether a password is required."""
        return bool(self._users)

    def allows(self, header: str | None) -> bool:
        """Whether the Authorization header names a user with the right password; without users, always."""
        if not self._users:
            return True
        pair = _decode(header)
        if pair is None:
            return False
        user, password = pair
        digest = hmac.digest(self._key, b"%d:%b:%b" % (len(user), user, password), "sha256")
        if digest in self._right:
            return True
        with self._turn:
            if digest in self._wrong:
                return False
            allowed = digest in self._right or self._check(user, password)
            kept = self._right if allowed else self._wrong
            kept[digest] = None
            if len(kept) > _CACHED:
                del kept[next(iter(kept))]
            return allowed

    def _check(self, user: bytes, password: bytes) -> bool:
        import bcrypt

        hashed = self._users.get(user)
        right = bcrypt.checkpw(password[:_PASSWORD_BYTES], hashed or self._anybody)
        return right and hashed is not None


def _decode(header: str | None) -> tuple[bytes, bytes] | None:
    if header is None or len(header) > _CREDENTIALS_BYTES:
        return None
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


class Access(NamedTuple):
    """What a web config comes to: TLS or none, who may come in, headers of every answer."""

    tls: ssl.SSLContext | None = None
    auth: BasicAuth = BasicAuth({})
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether a stranger is kept out."""
        return self.auth.is_required or (self.tls is not None and self.tls.verify_mode == ssl.CERT_REQUIRED)


class ConfigWatch:
    """The access of a web config file, read again where the file or one that it names has changed: keys get renewed.

    An invalid change is reported on stderr and has no effect. No `file`: neither TLS nor a password.
    UsageError where the file is wrong from the start.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._named: list[Path] = []
        self._access = Access()
        if file is not None:
            self._read(file)
        self._seen = self._stamps()
        self._lock = threading.Lock()

    def access(self) -> Access:
        """The access of this moment, for any thread."""
        if self._file is None:
            return self._access
        with self._lock:
            stamps = self._stamps()
            if stamps != self._seen:
                # What changes from here on is seen the next time.
                self._seen = stamps
                try:
                    self._read(self._file)
                except UsageError as error:
                    print(f"warning: {error}; the web config from before stays in force", file=sys.stderr)
            return self._access

    def _read(self, file: Path) -> None:
        config = load(file)
        tls = config.tls_server_config
        self._named = [file]
        context = None
        if tls is not None:
            self._named += [file.parent / name for name in (tls.cert_file, tls.key_file, tls.client_ca_file) if name]
            context = make_context(tls, file.parent)
        headers = tuple(config.http_server_config.headers.items())
        self._access = Access(context, BasicAuth(config.basic_auth_users), headers)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._named]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
