"""What the exporter answers, as bytes in and bytes out: no socket."""

import gzip
import re
from http import HTTPStatus

import pytest

from cadenza.readings import Reading
from cadenza.telemetry.exposition import OPENMETRICS_TYPE, TEXT_TYPE, tabulate
from cadenza.telemetry.pages import PageRequest, Site, list_headers, status_page, wants_gzip, wants_openmetrics
from cadenza.telemetry.sampler import State
from cadenza.telemetry.web_config import Access

OPEN = Access()
NASTY = '<script>alert("x")</script>&'
INFO = (
    "gpu",
    "vendor",
    "card",
    "kfd_node",
    "gfx",
    "product",
    "driver",
    "unique_id",
    "serial",
    "vbios",
    "compute_partition",
    "uuid",
)


def make_site(*readings: Reading) -> Site:
    state = State("amdgpu", True, 0.5, 0.01, {"absent": 2}, list(readings), None)
    return Site(lambda: [state], lambda states, scrapes: tabulate(states, "1.2.3", scrapes), "1.2.3")


def get(path: str, method: str = "GET", **headers: str) -> PageRequest:
    return PageRequest(method, path, {name.replace("_", "-"): value for name, value in headers.items()})


def test_the_metrics_page_is_text_or_openmetrics_as_asked_and_counts_itself() -> None:
    site = make_site()
    first, second, third = (
        site.answer(request, OPEN)
        for request in (get("/metrics"), get("/metrics", accept="application/openmetrics-text"), get("/metrics"))
    )
    assert first.type == TEXT_TYPE
    assert b"\ncadenza_exporter_scrapes_total 0.0\n" in first.body
    assert second.type == OPENMETRICS_TYPE
    assert second.body.endswith(b"\n# EOF\n")
    assert b"\ncadenza_exporter_scrapes_total 2.0\n" in third.body


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5", False),
        # Prometheus 2.42 and 3.x
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4", True),
        ("application/openmetrics-text;version=", False),
        (";,;;version=1.0.0", False),
    ],
)
def test_openmetrics_is_for_who_names_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        *(("", False), ("gzip", True), ("deflate, gzip;q=1.0", True), ("GZIP", True)),
        *(("gzip;q=0", False), ("gzip; q=0.0", False), ("identity", False), ("gzip;q=0.001", True)),
    ],
)
def test_gzip_is_for_who_takes_it(header: str, wanted: bool) -> None:
    assert wants_gzip(header) is wanted


def test_a_large_page_is_compressed_and_a_small_one_is_not() -> None:
    readings = [Reading("gpu_busy_ratio", (("gpu", f"0000:{n:02x}:00.0"), ("vendor", "amd")), 1.0) for n in range(64)]
    plain = make_site(*readings).answer(get("/metrics"), OPEN)
    packed = make_site(*readings).answer(get("/metrics", accept_encoding="gzip"), OPEN)
    assert dict(packed.headers)["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 4
    small = make_site().answer(get("/metrics", accept_encoding="gzip"), OPEN)
    assert "Content-Encoding" not in dict(small.headers)


def test_the_landing_page_tells_cards_and_collectors_and_escapes_both() -> None:
    values = dict.fromkeys(INFO, "x") | {"gpu": "0000:43:00.0", "product": NASTY}
    page = make_site(Reading("gpu_info", tuple((name, values[name]) for name in INFO), 1.0)).answer(get("/"), OPEN)
    text = page.body.decode()
    assert page.type.startswith("text/html")
    assert '<a href="/metrics">' in text
    assert "0000:43:00.0" in text
    assert "<td>amdgpu</td><td>ok</td><td>0.5 s ago</td><td>absent 2</td>" in text
    assert NASTY not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;" in text


def test_the_landing_page_tells_who_is_down_and_who_sleeps() -> None:
    def card(gpu: str, product: str) -> Reading:
        values = dict.fromkeys(INFO, "x") | {"gpu": gpu, "product": product}
        return Reading("gpu_info", tuple((name, values[name]) for name in INFO), 1.0)

    a, b, c, d = ((("gpu", f"0000:0{n}:00.0"), ("vendor", "amd")) for n in range(1, 5))
    page = make_site(
        *(card(a[0][1], "A"), Reading("gpu_up", a, 1.0), Reading("gpu_suspended", a, 0.0)),
        *(card(b[0][1], "B"), Reading("gpu_up", b, 1.0), Reading("gpu_suspended", b, 1.0)),
        *(Reading("gpu_up", c, 0.0), Reading("gpu_up", d, 0.0)),
    ).answer(get("/"), OPEN)
    rows = re.findall(r"<tr><td>(0000:.*?)</td></tr>", page.body.decode())
    assert [tuple(row.split("</td><td>")) for row in rows] == [
        *(("0000:01:00.0", "A", "up"), ("0000:02:00.0", "B", "asleep")),
        *(("0000:03:00.0", "", "down"), ("0000:04:00.0", "", "down")),
    ]


def test_health_other_paths_and_other_methods() -> None:
    site = make_site()
    assert site.answer(get("/-/healthy"), OPEN).status == HTTPStatus.OK
    assert [site.answer(get(path), OPEN).status for path in ("/nope", "/metrics/", "//")] == [404] * 3
    refused = site.answer(get("/metrics", "POST"), OPEN)
    assert (refused.status, dict(refused.headers)["Allow"]) == (405, "GET, HEAD")


def test_without_the_password_every_page_is_closed() -> None:
    class Nobody:
        def allows(self, header: str | None) -> bool:
            return header == "let me in"

    access = Access(auth=Nobody())  # type: ignore[arg-type]
    for path in ("/", "/metrics", "/-/healthy", "/nope"):
        answer = make_site().answer(get(path), access)
        assert answer.status == 401
        assert dict(answer.headers)["WWW-Authenticate"].startswith("Basic ")
    assert make_site().answer(get("/", authorization="let me in"), access).status == 200


def test_every_response_has_these_headers() -> None:
    headers = list_headers(status_page(HTTPStatus.NOT_FOUND), OPEN)
    assert headers["Content-Length"] == "10"  # Not Found, and a newline
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "Server" not in headers


def test_headers_of_the_web_config_win_over_ours() -> None:
    access = Access(headers=(("X-Frame-Options", "SAMEORIGIN"), ("Strict-Transport-Security", "max-age=60")))
    headers = list_headers(status_page(HTTPStatus.OK), access)
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["Strict-Transport-Security"] == "max-age=60"
