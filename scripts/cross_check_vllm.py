"""Sweep a vLLM server, and hold the client's counts and times against the engine's own /metrics of the same interval.

    python scripts/cross_check_vllm.py URL OUT [cadenza sweep flags…]

Prints the sweep's Markdown table and the comparison. The server must have no other traffic meanwhile.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from cadenza.record import Outcome, Record
from cadenza.store.rundir import read_run

_LINE = re.compile(r"^(vllm:\w+?)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_WANTED = (
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
)


def read_metrics(url: str) -> dict[str, float]:
    """The engine's counters and histogram sums, over all label sets."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    totals = dict.fromkeys(_WANTED, 0.0)
    for name, value in _LINE.findall(text):
        if name in totals:
            totals[name] += float(value)
    return totals


def compare(records: list[Record], trials: int, delta: dict[str, float]) -> list[tuple[str, float, float]]:
    """Rows (what, client, engine). The engine has also served the preflight's trials, 8 tokens each."""
    ok = [r for r in records if r.outcome is Outcome.OK]
    firsts = [(r.event_ns[0] - (r.sent_ns or 0)) / 1e6 for r in ok if r.event_ns]
    latencies = [(r.event_ns[-1] - (r.sent_ns or 0)) / 1e6 for r in ok if r.event_ns]
    gaps = [(b - a) / 1e6 for r in ok for a, b in zip(r.event_ns, r.event_ns[1:], strict=False)]

    def mean_ms(name: str) -> float:
        return 1e3 * delta[f"vllm:{name}_seconds_sum"] / delta[f"vllm:{name}_seconds_count"]

    return [
        ("requests", len(ok), delta["vllm:request_success_total"] - trials),
        ("output tokens", sum(r.output_tokens or 0 for r in ok), delta["vllm:generation_tokens_total"] - 8 * trials),
        ("TTFT mean, ms", sum(firsts) / len(firsts), mean_ms("time_to_first_token")),
        ("gap between tokens, mean, ms", sum(gaps) / len(gaps), mean_ms("inter_token_latency")),
        ("latency mean, ms", sum(latencies) / len(latencies), mean_ms("e2e_request_latency")),
    ]


def main() -> int:
    url, out, *flags = sys.argv[1:]
    before = read_metrics(url)
    command = [sys.executable, "-m", "cadenza", "sweep", "--url", url, "--out", out, "--quiet", "--json", *flags]
    swept = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    after = read_metrics(url)
    run = read_run(Path(out))
    records = list(run.records())
    rows = compare(records, 1, {name: after[name] - before[name] for name in after})
    subprocess.run([sys.executable, "-m", "cadenza", "show", out, "--markdown"], check=False)
    print(
        f"\n| {run.manifest.server.engine} {run.manifest.server.version}, whole sweep | cadenza | engine | difference |"
    )
    print("|---|---:|---:|---:|")
    for what, ours, theirs in rows:
        print(f"| {what} | {ours:,.2f} | {theirs:,.2f} | {100 * (ours / theirs - 1):+.2f} % |")
    return swept.returncode


if __name__ == "__main__":
    sys.exit(main())
