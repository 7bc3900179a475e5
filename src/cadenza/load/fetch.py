"""One plain request and its whole answer, for what surrounds a measurement: models, version, metrics."""

from typing import NamedTuple

from cadenza.clock import NS_PER_S
from cadenza.errors import TargetError
from cadenza.load.target import Target
from cadenza.load.transport import Closed, Transport
from cadenza.record import printable
from cadenza.wire.dialect import MalformedError
from cadenza.wire.errors import read_error
from cadenza.wire.http1 import ResponseReader, encode_request

MAX_ANSWER_BYTES = 32 << 20

Headers = tuple[tuple[str, str], ...]


class Page(NamedTuple):
    """A page of `target` that is fetched again and again, e.g. an engine's metrics; `headers` go with each request."""

    target: Target
    path: str
    headers: Headers


class Answer(NamedTuple):
    """A response, whole."""

    status: int
    content_type: str
    body: bytes

    def error_line(self) -> str:
        """The server's own words, for a status other than 200."""
        return read_error(self.body, self.content_type)


def fetch(
    transport: Transport,
    target: Target,
    path: str,
    headers: Headers = (),
    body: bytes = b"",
    timeout_s: float = 10.0,
) -> Answer:
    """GET `path`, or POST `body` to it, on a connection of its own; TargetError where no HTTP answer comes."""
    data = encode_request("POST" if body else "GET", target.path(path), target.authority, headers, body)
    until_ns = transport.clock.now_ns() + round(timeout_s * NS_PER_S)
    connection = transport.connect(target.origin)
    try:
        transport.send(connection, data)
        return _read(transport, target, path, connection, until_ns)
    except MalformedError as error:
        raise TargetError(f"{target.url} does not speak HTTP as it should: {error}") from None
    finally:
        transport.close(connection)


def _read(transport: Transport, target: Target, path: str, connection: int, until_ns: int) -> Answer:
    reader, body = ResponseReader(), bytearray()
    where = f"{target.url}{path}"
    halfway = ""
    while not reader.complete:
        if transport.clock.now_ns() >= until_ns:
            raise TargetError(f"{where}: no whole answer in time: is this the right port?")
        for number, _, payload, _ in transport.poll(until_ns):
            if number != connection:
                continue
            if isinstance(payload, bytes):
                halfway = " before an answer was whole"
                reader.feed(payload)
                body += reader.take()
            elif isinstance(payload, Closed) and not (payload.clean and reader.eof()):
                raise TargetError(f"{where}: {printable(payload.reason)}{halfway}")
        if len(body) > MAX_ANSWER_BYTES:
            raise TargetError(f"{where}: an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
    assert reader.status is not None
    return Answer(reader.status, reader.headers.get("content-type", ""), bytes(body))
