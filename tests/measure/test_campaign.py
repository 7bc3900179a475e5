"""The article's whole campaign, load room against engine, on a virtual clock: the 45 values of its table."""

import csv
from pathlib import Path

import pytest

from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import summarise_point
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange
from cadenza.load.issue import closed_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import PointStatus, Record
from cadenza.spec import Credentials, Spec, Timeouts

SWEEP = Path(__file__).parents[1] / "data" / "article" / "sweep.csv"
ROWS = list(csv.DictReader(SWEEP.read_text().splitlines()))
# The article's measuring window, not the engine: its throughputs lie this much below steady state for C > 1.
PHI = 0.977
SPEC = Spec(output_tokens=(128, 256), seed=1, timeouts=Timeouts(total_s=3600))
TARGET = Target("http://engine", Origin("engine", ("127.0.0.1", 1)), "engine", "")


def measure(model: str, concurrency: int) -> PointSummary:
    (point,) = lay_out(Spec(engine="mi50-rx6900xt", concurrency=(concurrency,), seed=SPEC.seed), [model])
    phrasing = Phrasing(SPEC, Credentials(), [TARGET])
    engine = MemoryTransport(HttpApi(profile.load("mi50-rx6900xt")))
    client = Client(engine, [TARGET.origin], phrasing.dialect, SPEC.timeouts)
    records: list[Record] = []

    def keep(exchange: Exchange) -> None:
        records.append(exchange.record(0, model))

    requests = (phrasing.put(request, options_for(SPEC, model)) for request in draw_requests(SPEC, point))
    closed_loop(client, requests, concurrency, keep, stop=lambda: False)
    point.status = PointStatus.COMPLETE
    return summarise_point(point, records)


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['model']}-{r['concurrency']}" for r in ROWS])
def test_every_value_of_the_articles_table(row: dict[str, str]) -> None:
    found = measure(row["model"], int(row["concurrency"]))
    assert found.requests.ok == (192 if row["concurrency"] == "16" else 128)  # twelve rounds at least
    assert found.verdict == "VALID", found.reasons
    phi = 1 if row["concurrency"] == "1" else PHI
    assert found.throughput_tok_per_s * phi == pytest.approx(float(row["throughput_tok_s"]), rel=0.031)
    assert found.ttft_ms.mean == pytest.approx(float(row["ttft_mean_ms"]), rel=0.031)
    assert found.tpot_ms.mean == pytest.approx(float(row["tpot_mean_ms"]), rel=0.031)
