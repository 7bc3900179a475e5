"""The client most people write first: asyncio, httpx.AsyncClient, aiter_lines, json.loads, a stamp in the loop.

    python article_client.py URL CONCURRENCY REQUESTS TOKENS RESULT.json [MODEL]

Kept as plain as such clients are, with two repairs, so that it measures the same thing as the others: C requests are
held in flight (by C tasks), and a chunk counts only where it has text. Needs httpx, and nothing of cadenza.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx  # type: ignore[import-not-found, unused-ignore]

TIMEOUT_S = 120.0


async def ask(
    client: httpx.AsyncClient, url: str, model: str, tokens: int, ttft_ms: list[float], itl_ms: list[float]
) -> int:
    """One streamed answer, its times appended in ms; how many chunks had text."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": tokens,
        "temperature": 0.7,
        "ignore_eos": True,
        "stream": True,
    }
    count, last_ns = 0, time.perf_counter_ns()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                now_ns = time.perf_counter_ns()
                (itl_ms if count else ttft_ms).append((now_ns - last_ns) / 1e6)
                last_ns = now_ns
                count += 1
    return count


async def measure(url: str, model: str, concurrency: int, requests: int, tokens: int) -> dict[str, object]:
    """`requests` answers, `concurrency` at a time."""
    began = time.perf_counter()
    ttft_ms: list[float] = []
    itl_ms: list[float] = []
    events = 0
    todo = iter(range(requests))
    limits = httpx.Limits(max_connections=2 * concurrency, max_keepalive_connections=2 * concurrency)

    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:

        async def user() -> None:
            nonlocal events
            for _ in todo:
                events += await ask(client, url, model, tokens, ttft_ms, itl_ms)

        await asyncio.gather(*(user() for _ in range(concurrency)))
    seconds = time.perf_counter() - began
    return {"requests": requests, "events": events, "seconds": seconds, "ttft_ms": ttft_ms, "itl_ms": itl_ms}


def main() -> None:
    url, concurrency, requests, tokens, result = sys.argv[1:6]
    model = sys.argv[6] if len(sys.argv) > 6 else "truth"
    told = asyncio.run(measure(url, model, int(concurrency), int(requests), int(tokens)))
    Path(result).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
