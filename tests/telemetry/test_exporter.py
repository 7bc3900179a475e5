"""The server over real loopback sockets. Its patience is cut to fractions of a second where that is the point."""

import base64
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from cadenza.errors import UsageError
from cadenza.readings import Collected, Collector, Reading
from cadenza.telemetry import exporter
from cadenza.telemetry.exporter import MetricsServer, is_loopback, listen, parse_listen, url_of
from cadenza.telemetry.exposition import tabulate
from cadenza.telemetry.pages import PageRequest, Response, Site
from cadenza.telemetry.sampler import Sampler
from cadenza.telemetry.web_config import Access, ConfigWatch

TLS = Path(__file__).parents[1] / "data" / "tls"
LARGE = 32 << 20
slow = pytest.mark.slow


class Card(Collector):
    """A collector with one series."""

    name = "amdgpu"

    def collect(self) -> Collected:
        return Collected([Reading("gpu_busy_ratio", (("gpu", "0000:43:00.0"), ("vendor", "amd")), 0.25)], [])


def make_site() -> Site:
    sampler = Sampler([Card()])
    sampler.poll()
    return Site(sampler.states, lambda states, scrapes: tabulate(states, "1.2.3", scrapes), "1.2.3")


class Fixed:
    """A site of two pages: /large, and one that cannot be made."""

    def answer(self, request: PageRequest, access: Access) -> Response:
        if request.path == "/large":
            return Response(HTTPStatus.OK, "text/plain", b"x" * LARGE)
        raise ZeroDivisionError("a bug")


@contextmanager
def running(site: Site | Fixed | None = None, web_config: Path | None = None) -> Iterator[int]:
    listener = listen("127.0.0.1", 0)
    server = MetricsServer(listener, site or make_site(), ConfigWatch(web_config))  # type: ignore[arg-type]
    port: int = listener.getsockname()[1]
    done = threading.Event()
    thread = threading.Thread(target=server.run, args=(done.is_set,))
    thread.start()
    try:
        yield port
    finally:
        done.set()
        thread.join(10)
        server.close()
        assert not thread.is_alive()
        assert not server._clients


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request(method, path, headers=headers)
    response = client.getresponse()
    text = response.read().decode()
    client.close()
    return response.status, text


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def ends(sock: socket.socket) -> bool:
    """Whether the other side has closed or broken it within ten seconds; what it said before is read over."""
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("127.0.0.1:9101", ("127.0.0.1", 9101)),
        ("[::1]:0", ("::1", 0)),
        (":9101", ("", 9101)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_where_to_listen(text: str, told: tuple[str, int]) -> None:
    assert parse_listen(text) == told


@pytest.mark.parametrize("text", ["", "9101", "localhost", "a:b", "a:", "a:65536", "::1:9101", "a:-1", "a:²"])
def test_where_nobody_can_listen_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_listen(text)


@slow
def test_pages_on_one_kept_connection() -> None:
    with running() as port:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for scrapes in range(3):
            client.request("GET", "/metrics")
            text = client.getresponse().read().decode()
            assert '\ngpu_busy_ratio{gpu="0000:43:00.0",vendor="amd"} 0.25\n' in text
            assert f"\ncadenza_exporter_scrapes_total {scrapes}.0\n" in text
        client.request("HEAD", "/metrics")
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"")
        client.request("GET", "/nope")
        assert client.getresponse().status == 404
        client.close()


@slow
def test_requests_in_one_packet_and_byte_by_byte() -> None:
    request = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /-/healthy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with running() as port:
        for pieces in ([request + request + last], [bytes([byte]) for byte in request + request + last]):
            with dial(port) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for piece in pieces:
                    sock.sendall(piece)
                got = b""
                while data := sock.recv(1 << 16):
                    got += data
                assert got.count(b"HTTP/1.1 200 OK\r\n") == got.count(b"\r\n\r\nOK\n") == 3


@slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345", 413),
    ],
)
def test_what_is_no_request_is_told_so_and_closed(sent: bytes, status: int) -> None:
    with running() as port:
        with dial(port) as sock:
            sock.sendall(sent)
            assert sock.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())
            assert ends(sock)
        assert get(port)[0] == 200


@slow
def test_a_page_that_fails_is_a_500_and_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with running(Fixed()) as port:
        assert get(port) == (500, "Internal Server Error\n")
    told = capfd.readouterr().err
    assert "a bug" in told
    assert "Traceback" not in told


@slow
def test_one_that_never_finishes_its_request_holds_up_nobody_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "REQUEST_S", 0.5)
    with running() as port, dial(port) as silent, dial(port) as drip:
        drip.sendall(b"GET / HT")
        assert get(port)[0] == 200
        begun = time.monotonic()
        while time.monotonic() - begun < 5:
            # A byte now and then does not prolong it.
            try:
                drip.sendall(b"x")
            except OSError:
                break
            if select.select([drip], [], [], 0.05)[0]:
                break
        assert time.monotonic() - begun < 5
        assert ends(silent)


@slow
def test_one_that_does_not_read_holds_up_nobody_and_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "REQUEST_S", 1.0)
    with running(Fixed()) as port, dial(port) as sock:
        sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert sock.recv(16) == b"HTTP/1.1 200 OK\r"
        begun = time.monotonic()
        assert get(port, "/other")[0] == 500
        assert time.monotonic() - begun < 0.5
        # Not reading on, until the connection is broken off with whatever was still to come.
        events = select.poll()
        events.register(sock, 0)
        assert events.poll(10_000) == [(sock.fileno(), select.POLLERR | select.POLLHUP)]
        received = 0
        try:
            while data := sock.recv(1 << 16):
                received += len(data)
        except ConnectionResetError:
            received += LARGE
        assert LARGE < received < 2 * LARGE


@slow
def test_a_connection_nobody_uses_ends_and_makes_room_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MAX_CONNECTIONS", 2)
    with running() as port:
        kept = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(2)]
        for client in kept:
            client.request("GET", "/-/healthy")
            client.getresponse().read()
        assert get(port)[0] == 200
        assert isinstance(kept[0].sock, socket.socket)
        assert ends(kept[0].sock)
        kept[0].close()
        kept[1].request("GET", "/-/healthy")
        assert kept[1].getresponse().status == 200
        monkeypatch.setattr(exporter, "IDLE_S", 0.1)
        kept[1].close()
        with dial(port) as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
            assert ends(sock)


@slow
def test_when_all_places_are_at_work_the_next_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "MAX_CONNECTIONS", 2)
    with running() as port:
        with dial(port) as one, dial(port) as two:
            for sock in (one, two):
                sock.sendall(b"GET /")
            with dial(port) as third:
                assert third.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
                assert ends(third)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and (status := try_get(port)) != 200:
            pass
        assert status == 200


def try_get(port: int) -> int | None:
    try:
        return get(port)[0]
    except OSError:
        return None


@slow
def test_a_hung_collector_leaves_the_page_as_it_was() -> None:
    release, stuck = threading.Event(), threading.Event()

    class Hung(Collector):
        name = "smi"

        def collect(self) -> Collected:
            stuck.set()
            release.wait()
            return Collected([], [])

    sampler = Sampler([Hung(), Card()])
    sampler.start()
    assert stuck.wait(10)
    sampler.wait(1, 0.2)
    site = Site(sampler.states, lambda states, scrapes: tabulate(states, "1", scrapes), "1")
    with running(site) as port:
        begun = time.monotonic()
        text = get(port)[1]
        assert time.monotonic() - begun < 1
    assert 'cadenza_collector_success{collector="smi"} 0.0' in text
    assert 'cadenza_collector_success{collector="amdgpu"} 1.0' in text
    assert 'cadenza_collector_duration_seconds{collector="smi"}' not in text
    assert "gpu_busy_ratio{" in text
    release.set()
    assert sampler.stop() == []


@slow
def test_stopping_ends_idle_and_stuck_connections_alike() -> None:
    with running() as port:
        one, two = dial(port), dial(port)
        one.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        two.sendall(b"GET")
        assert get(port)[0] == 200
    assert ends(one)
    assert ends(two)
    one.close()
    two.close()
    with pytest.raises(OSError):
        dial(port)


@slow
def test_a_port_that_is_taken_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: address already in use; try another"):
            listen("127.0.0.1", port)


@slow
def test_a_host_that_is_unknown_or_not_ours_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="cannot be resolved"):
        listen("nobody.invalid", 0)
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:9101"):
        listen("192.0.2.1", 9101)


@slow
def test_what_others_can_reach_is_known() -> None:
    with listen("127.0.0.1", 0) as mine, listen("", 0) as everybodys:
        assert is_loopback(mine)
        assert not is_loopback(everybodys)
        assert url_of(mine, Access()) == f"http://127.0.0.1:{mine.getsockname()[1]}"


def write_config(folder: Path, more: str = "") -> Path:
    file = folder / "web.yml"
    file.write_text(f"tls_server_config:\n  cert_file: {TLS / 'cert.pem'}\n  key_file: {TLS / 'key.pem'}\n{more}")
    return file


def trusting(*, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=TLS / "cert.pem")
    if with_certificate:
        context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return context


def get_tls(port: int, context: ssl.SSLContext, **headers: str) -> int:
    client = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    try:
        for _ in range(2):
            client.request("GET", "/metrics", headers=headers)
            response = client.getresponse()
            response.read()
        return response.status
    finally:
        client.close()


@slow
def test_tls_and_who_speaks_none(tmp_path: Path) -> None:
    with running(web_config=write_config(tmp_path)) as port:
        # Whoever stalls the handshake stalls only that.
        with dial(port) as silent, dial(port) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert ends(plain)
            assert get_tls(port, trusting()) == 200
            assert silent.fileno() >= 0
        with pytest.raises(ssl.SSLError):
            get_tls(port, ssl.create_default_context())
        old = trusting()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            get_tls(port, old)


@slow
def test_a_client_must_show_the_certificate_that_is_asked_for(tmp_path: Path) -> None:
    with running(web_config=write_config(tmp_path, f"  client_ca_file: {TLS / 'cert.pem'}\n")) as port:
        assert get_tls(port, trusting(with_certificate=True)) == 200
        with pytest.raises(OSError):
            get_tls(port, trusting())


@slow
def test_a_password_is_asked_for_on_every_page(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  prometheus: {bcrypt.hashpw(b'pw', bcrypt.gensalt(4)).decode()}\n")
    right, wrong = (f"Basic {base64.b64encode(pair).decode()}" for pair in (b"prometheus:pw", b"prometheus:no"))
    with running(web_config=file) as port:
        for path in ("/", "/metrics", "/-/healthy"):
            ask: Callable[..., tuple[int, str]] = get
            assert ask(port, path)[0] == 401
            assert ask(port, path, Authorization=wrong)[0] == 401
            assert ask(port, path, Authorization=right)[0] == 200
        assert "amdgpu" not in get(port)[1]
