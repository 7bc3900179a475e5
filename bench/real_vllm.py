"""A real vLLM under our load and under the article's kind of client (httpx, line iterator): who slows it down?

    python -m bench.real_vllm URL [CONCURRENCY] [ROUNDS]       default: 32 at once, 3 rounds of each, in turn

Both ask for the same answers (one prompt, 64 tokens, end token ignored), 6 C of them. Tokens are the engine's own count
(the growth of vllm:generation_tokens_total), seconds are those that the client ran its load. Client and engine share
the machine's cores, as they do at home; the server must have no other traffic. Needs the extra [bench].
"""

import json
import re
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench.drive import run_ours
from bench.truth_server import BUILD

TOKENS = 64
ARTICLE = Path(__file__).parent / "peers" / "article_client.py"
_GENERATED = re.compile(r"^vllm:generation_tokens_total(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def generated(url: str) -> float:
    """Tokens that the engine has generated since it started."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return sum(float(value) for value in _GENERATED.findall(answer.read().decode()))


def run_article(url: str, model: str, slots: int) -> tuple[float, float, float]:
    """(seconds of load, CPU seconds, mean TTFT ms) as it measures itself."""
    result = BUILD / "bench" / "article.json"
    command = [sys.executable, str(ARTICLE), url, str(slots), str(6 * slots), str(TOKENS), str(result), model]
    subprocess.run(command, check=True, timeout=600)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(result.read_text())
    return float(told["seconds"]), used.ru_utime + used.ru_stime, float(np.mean(told["ttft_ms"]))


def run_cadenza(url: str, model: str, slots: int) -> tuple[float, float, float]:
    """The same of ours; seconds and CPU of the load alone."""
    prompt = BUILD / "bench" / "prompt.jsonl"
    prompt.parent.mkdir(parents=True, exist_ok=True)
    prompt.write_text('{"prompt": "Tell me a story."}\n')
    spec = {
        "urls": [url],
        "models": [model],
        "concurrency": [slots],
        "requests": 6 * slots,
        "warmup": 0,
        "prompts": f"jsonl:{prompt}",
        "cache": "reuse",
        "output_tokens": [TOKENS, TOKENS],
    }
    ours = run_ours("real-vllm", spec)
    return ours.wall_s, ours.cpu_s, float(ours.point["ttft_ms"]["mean"])


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit("python -m bench.real_vllm URL [CONCURRENCY] [ROUNDS]")
    url = sys.argv[1]
    slots = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        model = str(json.load(answer)["data"][0]["id"])
    clients: dict[str, Callable[[str, str, int], tuple[float, float, float]]] = {
        "cadenza": run_cadenza,
        "httpx": run_article,
    }
    rates: dict[str, list[float]] = {name: [] for name in clients}
    print(f"{model} at C = {slots}\nclient    tok/s   CPU µs/token   TTFT mean ms, as it says")
    for _ in range(rounds):
        for name, run in clients.items():
            before, cpu = generated(url), resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds, spent, ttft = run(url, model, slots)
            tokens = generated(url) - before
            if name == "httpx":
                spent -= cpu.ru_utime + cpu.ru_stime
            rates[name].append(tokens / seconds)
            print(f"{name:8s} {tokens / seconds:6.0f} {1e6 * spent / tokens:14.1f} {ttft:12.1f}", flush=True)
    ratio = np.median(rates["cadenza"]) / np.median(rates["httpx"])
    print(f"throughput with ours / with httpx, medians: {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
