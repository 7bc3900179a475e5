"""The clients to compare: how each is installed, started, and what its own result file says."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TOKENS = 128
PROMPT_TOKENS = 64
MODEL = "truth"
HUB_NAME = "local/truth"  # the tokenizer's name in the hub cache
TORCH = "torch==2.13.0"  # a CPU build will do, and is what pip takes where its sources hold one


@dataclass(frozen=True)
class Run:
    """One measurement to make. `program(name)`: a program of the tool's own environment."""

    url: str
    concurrency: int
    requests: int
    folder: Path
    tokenizer: Path
    environment: Path

    def program(self, name: str) -> str:
        return str(self.environment / "bin" / name)


@dataclass(frozen=True)
class Told:
    """What a tool reports of a run, ms. `note`: how to read it, where that is not obvious."""

    ttft_mean_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    answered: int
    note: str = ""


@dataclass(frozen=True)
class Tool:
    """`installs`: arguments of successive `pip install`; None: it runs in our own environment."""

    installs: tuple[tuple[str, ...], ...] | None
    command: Callable[[Run], list[str]]
    read: Callable[[Path], Told]


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _vllm_command(run: Run) -> list[str]:
    return [
        *(run.program("vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", run.url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", str(run.tokenizer)),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(TOKENS), "--num-prompts", str(run.requests)),
        *("--max-concurrency", str(run.concurrency), "--metric-percentiles", "50,99"),
        *("--save-result", "--result-dir", str(run.folder), "--result-filename", "result.json", "--disable-tqdm"),
    ]


def _vllm_read(folder: Path) -> Told:
    told = _load(folder / "result.json")
    return Told(told["mean_ttft_ms"], told["p50_itl_ms"], told["p99_itl_ms"], told["completed"])


def _guidellm_command(run: Run) -> list[str]:
    return [
        *(run.program("guidellm"), "run", "--backend", f"kind=openai_http,target={run.url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={run.concurrency}"),
        *("--constraint", f"kind=max_requests,count={run.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={run.folder / 'result.json'}", "--disable-console-interactive"),
    ]


def _guidellm_read(folder: Path) -> Told:
    metrics = _load(folder / "result.json")["benchmarks"][0]["metrics"]
    ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    # It keeps the first and the last stamp of an answer only, so its ITL is one mean per answer.
    gaps = itl["percentiles"]
    return Told(ttft["mean"], gaps["p50"], gaps["p99"], ttft["count"], "its ITL is a mean per answer")


def _aiperf_command(run: Run) -> list[str]:
    return [
        *(run.program("aiperf"), "profile", "--model", MODEL, "--url", run.url, "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", HUB_NAME, "--use-server-token-count"),
        *("--concurrency", str(run.concurrency), "--request-count", str(run.requests)),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(TOKENS), "--ui", "none"),
        *("--artifact-dir", str(run.folder), "--no-gpu-telemetry", "--no-server-metrics"),
    ]


def _aiperf_read(folder: Path) -> Told:
    told = _load(folder / "profile_export_aiperf.json")
    # What it calls ITL is one mean per answer; every gap is in what it calls inter-chunk latency.
    gaps = told["inter_chunk_latency"]
    answered = int(told["request_count"]["avg"])
    return Told(told["time_to_first_token"]["avg"], gaps["p50"], gaps["p99"], answered, "ITL: its inter-chunk latency")


def _httpx_command(run: Run) -> list[str]:
    settings = [run.url, str(run.concurrency), str(run.requests), str(TOKENS)]
    return [run.program("python"), str(HERE / "article_client.py"), *settings, str(run.folder / "result.json")]


def _httpx_read(folder: Path) -> Told:
    told = _load(folder / "result.json")
    p50, p99 = np.percentile(told["itl_ms"], [50, 99])
    return Told(float(np.mean(told["ttft_ms"])), float(p50), float(p99), len(told["ttft_ms"]))


def _cadenza_command(run: Run) -> list[str]:
    return [
        *(sys.executable, "-m", "cadenza", "run", "--url", run.url, "-c", str(run.concurrency)),
        *("--requests", str(run.requests), "--output-tokens", str(TOKENS), "--warmup", "0", "--json"),
        *("--out", str(run.folder / "run")),
    ]


def _cadenza_read(folder: Path) -> Told:
    (point,) = _load(folder / "run" / "summary.json")["points"]
    # Of the measured requests, each followed to its end: with no warm-up the whole run, like the others and the truth.
    ttft, itl = point["ttft_ms"], point["itl_ms"]
    return Told(ttft["mean"], itl["p50"], itl["p99"], point["requests"]["ok"], point["verdict"])


# `vllm bench serve` without the engine's dependencies: what its imports ask for, and no CUDA libraries.
_VLLM_IMPORTS = (
    *("aiohttp", "cachetools", "cbor2", "cloudpickle", "datasets", "einops", "fastapi>=0.133,<0.137"),
    *("llguidance>=1.7,<1.8", "msgspec", "numpy", "openai", "opencv-python-headless", "oss-harmony", "pandas"),
    *("partial-json-parser", "pillow", "prometheus_client", "protobuf", "psutil", "py-cpuinfo", "pybase64"),
    *("pydantic", "pyyaml", "pyzmq", "regex", "requests", "sentencepiece", "tiktoken", "tqdm"),
    *("transformers>=5.16.1,<5.20", "uvicorn", "uvloop", "watchfiles", "xgrammar==0.2.8"),
)

TOOLS = {
    "vllm": Tool(((TORCH,), ("--no-deps", "vllm==0.32.0"), _VLLM_IMPORTS), _vllm_command, _vllm_read),
    "guidellm": Tool(((TORCH,), ("guidellm==0.8.1",)), _guidellm_command, _guidellm_read),
    "aiperf": Tool((("aiperf==0.13.0",),), _aiperf_command, _aiperf_read),
    "httpx": Tool((("httpx>=0.28,<0.29",),), _httpx_command, _httpx_read),
    "cadenza": Tool(None, _cadenza_command, _cadenza_read),
}
