"""Sweep a vLLM server, hold both sides' counts and times together, and take the difference in TTFT apart.

    python scripts/explain_ttft.py URL OUT [cadenza sweep flags…]

While the sweep runs, the same API server is asked eight times a second for two things that never reach the engine: its
/health, and a chat completion of a model that it does not have (HTTP, JSON and validation, then 404). The server must
have no other traffic.
"""

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cadenza.clock import NS_PER_MS
from cadenza.record import Outcome, Record
from cadenza.store.rundir import read_run

_EVERY_S = 0.125
_PROMPT = " ".join(["word"] * 64)


class Probe(NamedTuple):
    """When it was sent, and how long its answer took."""

    at_ns: int
    took_ns: int


def ask(url: str, ended: threading.Event, health: list[Probe], refused: list[Probe]) -> None:
    """Both questions in turn, on one connection, until `ended`."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    body = json.dumps(
        {"model": "there is no such model", "stream": True, "messages": [{"role": "user", "content": _PROMPT}]}
    )
    kinds = (
        (health, "GET", "/health", None),
        (refused, "POST", "/v1/chat/completions", body),
    )
    while not ended.is_set():
        for probes, method, path, sent in kinds:
            began = time.monotonic_ns()
            connection.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
            connection.getresponse().read()
            probes.append(Probe(began, time.monotonic_ns() - began))
            ended.wait(_EVERY_S / 2)


def count_rows(label: str, found: dict[str, Any]) -> list[str]:
    """Requests, tokens, TTFT, ITL and latency of one point, as Markdown."""
    rows = []
    for name in ("requests", "prompt_tokens", "generation_tokens"):
        count = found[name]
        rows.append(
            f"| {label} | {name.replace('_', ' ')} | {count['client']:,} | {count['server']:,} | "
            f"{100 * count['difference']:+.2f} % |"
        )
    for name in ("ttft", "itl", "latency"):
        pair = found[name]
        rows.append(
            f"| {label} | {name if name == 'latency' else name.upper()} mean, ms | {pair['client_ms']:.2f} | "
            f"{pair['server_ms']:.2f} | {pair['beyond_ms']:+.2f} ms |"
        )
    return rows


def mean_ms(spans_ns: list[int]) -> float:
    """NaN of nothing."""
    return statistics.fmean(spans_ns) / NS_PER_MS if spans_ns else float("nan")


def first_event_is_late_ms(records: list[Record], itl_ms: float) -> float:
    """What an event-less first token adds: the share of tokens that carry no text, times the gap to the next.

    It takes such tokens to be spread evenly over an answer.
    """
    tokens = sum(record.output_tokens or 0 for record in records)
    events = sum(len(record.event_ns) for record in records)
    silent = max(0.0, 1 - events / tokens) if tokens else 0.0
    return silent / (1 - silent) * itl_ms


def explain_row(label: str, found: dict[str, Any], records: list[Record], health: float, refused: float) -> str:
    """One point's TTFT: what the client saw of it, what the engine did, and what the API server takes for nothing."""
    headers = mean_ms([r.headers_ns - r.sent_ns for r in records if r.headers_ns and r.sent_ns])
    connected = mean_ms([r.connected_ns - r.sent_ns for r in records if r.connected_ns and r.sent_ns])
    ttft, queue, prefill = found["ttft"], found["queue_ms"], found["prefill_ms"]
    rest = ttft["server_ms"] - queue - prefill
    figures = (
        ttft["client_ms"],
        headers,
        ttft["server_ms"],
        queue + prefill,
        rest,
        ttft["beyond_ms"],
        refused,
        health,
        first_event_is_late_ms(records, found["itl"]["client_ms"]),
        0.0 if connected != connected else connected * sum(bool(r.connected_ns) for r in records) / len(records),
    )
    return f"| {label} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |"


def main() -> int:
    url, out, *flags = sys.argv[1:]
    health: list[Probe] = []
    refused: list[Probe] = []
    ended = threading.Event()
    asking = threading.Thread(target=ask, args=(url, ended, health, refused), daemon=True)
    asking.start()
    command = [sys.executable, "-m", "cadenza", "sweep", "--url", url, "--out", out, "--quiet", "--json", *flags]
    swept = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    ended.set()
    asking.join()
    run = read_run(Path(out))
    by_point: dict[int, list[Record]] = {}
    for record in run.records():
        by_point.setdefault(record.point, []).append(record)
    told, explained = [], []
    for summary, point in zip(json.loads(swept.stdout)["points"], run.manifest.points, strict=True):
        start, end = point.start_ns or 0, point.end_ns or 0
        during = [mean_ms([p.took_ns for p in kind if start <= p.at_ns <= end]) for kind in (health, refused)]
        ok = [record for record in by_point[point.index] if record.outcome is Outcome.OK]
        label = str(point.concurrency) if point.concurrency else f"{point.rate_per_s:g}/s"
        told += count_rows(label, summary["reconciliation"])
        explained.append(explain_row(label, summary["reconciliation"], ok, *during))
    print("| C | what | client | server | difference |\n|---:|:---|---:|---:|---:|")
    print("\n".join(told))
    print(
        "\n| C | TTFT, client | to the headers | TTFT, engine | queue + prefill | rest of the engine's "
        "| client − engine | 404, meanwhile | /health, meanwhile | first token without text | connecting |"
    )
    print("|---:" * 11 + "|\n" + "\n".join(explained))
    return swept.returncode


if __name__ == "__main__":
    sys.exit(main())
