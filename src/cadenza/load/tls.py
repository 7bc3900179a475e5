"""TLS over two memory buffers, so that the socket is read in one place only, where the stamp is taken."""

import contextlib
import ssl

_READ_BYTES = 1 << 16


def tls_context(verify: bool = True) -> ssl.SSLContext:
    """The system's trust store; `verify=False` accepts any certificate (a home server's own)."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Tls:
    """One connection's encryption. What it raises is `ssl.SSLError`; `explain` makes a line of that."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self, received: bytes) -> tuple[bool, bytes]:
        """Feed what came; whether the handshake is done, and what to send for it."""
        self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """All plaintext that is whole by now."""
        self._incoming.write(received)
        plain = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while part := self._object.read(_READ_BYTES):
                plain += part
        return bytes(plain)


def explain(error: ssl.SSLError) -> str:
    """Why the connection broke, in one line."""
    return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
