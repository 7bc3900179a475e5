"""How long an SSE event takes to parse: `python bench/sse_rate.py`. One JSON line a case.

`ratio` is against `bytes.split(b"\\n\\n")` over the same bytes, so that runs on different machines compare.
"""

import json
import time
from collections.abc import Callable

from cadenza.wire.sse import SseParser

EVENT = (
    b'data: {"id":"chatcmpl-85405c2fe07ff1de","object":"chat.completion.chunk","created":1796013769,"model":"tiny",'
    b'"choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
EVENTS = 2_000


def best_ns(run: Callable[[], object], repeats: int = 30) -> float:
    """Nanoseconds an event, best of `repeats` (the least disturbed)."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - begun)
    return best / EVENTS


def parse(reads: list[bytes]) -> None:
    parser = SseParser()
    count = 0
    for read in reads:
        count += len(parser.feed(read))
    if count != EVENTS:
        raise RuntimeError(f"{count} events instead of {EVENTS}")


def main() -> None:
    whole = EVENT * EVENTS
    baseline_ns = best_ns(lambda: whole.split(b"\n\n"))
    cases = {
        "one event a read": [EVENT] * EVENTS,
        "eight events a read": [EVENT * 8] * (EVENTS // 8),
        "one event a read, CRLF": [EVENT.replace(b"\n", b"\r\n")] * EVENTS,
        "events cut in two": [part for _ in range(EVENTS) for part in (EVENT[:97], EVENT[97:])],
    }
    for name, reads in cases.items():
        event_ns = best_ns(lambda reads=reads: parse(reads))  # type: ignore[misc]
        print(json.dumps({"case": name, "ns_per_event": round(event_ns), "ratio": round(event_ns / baseline_ns, 1)}))


if __name__ == "__main__":
    main()
