"""Workloads for the scheduler's side-by-side with vLLM. Pure standard library: both sides read the same dicts.

A workload is {"limits", "requests"}; a trace adds "vllm" and "steps" (see record_vllm.py). A request:

    id               int, unique; ids rise in the order of arrival
    arrives_at_step  it is in the queue before that step is decided (steps count from 0; an idle one counts too)
    prompt           parts in order, each {"seed", "n"} (n tokens that only the seed decides) or {"output_of", "n"}
                     (the first n tokens that request `output_of` was answered with: the next turn of a conversation)
    max_tokens       tokens it produces, unless max_model_len ends it first
    priority         the lowest goes first (priority policy only)
    abort_at_step    optional: its client leaves, and the engine knows before that step is decided
    abort_in_step    optional: the engine knows after that step was decided and before any result is taken in

The n-th output token (from 1) of request `id` is 1000000 * (id + 1) + n: no two requests share one, no prompt holds
one by chance. Of `k` proposed tokens, the first (5 * id + 3 * n) % (k + 1) are accepted, n output tokens being there.
"""

import random
import zlib
from typing import Any

Workload = dict[str, Any]

_VOCABULARY = 1_000_000

LIMITS: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "max_model_len": 512,
    "block_size": 16,
    "num_gpu_blocks": 200,
    "scheduling_policy": "fcfs",
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": 0,
    "async_scheduling": False,
    "num_speculative_tokens": 0,
    "watermark": 0.0,
}


def output_token(request: int, n: int) -> int:
    """The n-th output token (from 1) of request `request`."""
    return _VOCABULARY * (request + 1) + n


def accepted_tokens(request: int, n: int, proposed: int) -> int:
    """How many of `proposed` tokens are accepted when `n` output tokens are there."""
    return (5 * request + 3 * n) % (proposed + 1)


def prompt_tokens(parts: list[dict[str, int]]) -> list[int]:
    """The token ids of a prompt given in parts."""
    tokens: list[int] = []
    for part in parts:
        if "output_of" in part:
            tokens += [output_token(part["output_of"], n) for n in range(1, part["n"] + 1)]
        else:
            draw = random.Random(part["seed"]).random
            tokens += [int(draw() * _VOCABULARY) for _ in range(part["n"])]
    return tokens


def prompt_length(parts: list[dict[str, int]]) -> int:
    """Tokens of a prompt given in parts."""
    return sum(part["n"] for part in parts)


def block_sum(tables: list[list[int]]) -> int:
    """One number for the blocks that the running sequences hold, in order: equal tables, equal numbers."""
    return zlib.crc32(repr(tables).encode())


def request(number: int, at: int, prompt: int | list[dict[str, int]], tokens: int, **more: int) -> dict[str, Any]:
    """A request; a prompt given as a number is that many tokens that no other request shares."""
    parts = [{"seed": 7000 + number, "n": prompt}] if isinstance(prompt, int) else prompt
    return {"id": number, "arrives_at_step": at, "prompt": parts, "max_tokens": tokens, "priority": 0, **more}


def workload(requests: list[dict[str, Any]], **limits: Any) -> Workload:
    """A workload under LIMITS, those of `limits` changed."""
    return {"limits": LIMITS | limits, "requests": requests}


def plain() -> Workload:
    """First come, first served, with room for all."""
    return workload([request(i, i // 2, 20 + 13 * i, 5 + 3 * (i % 4)) for i in range(8)])


def pressure(**limits: Any) -> Workload:
    """More than the KV cache holds: preemption after preemption."""
    requests = [request(i, i // 3, 30 + 7 * (i % 5), 40 + 11 * (i % 4)) for i in range(10)]
    return workload(requests, **{"num_gpu_blocks": 21, "max_model_len": 256} | limits)


def chunked(**limits: Any) -> Workload:
    """Prompts longer than a step's token budget, beside sequences that decode."""
    requests = [request(i, 2 * i, (150, 40, 97, 64, 33, 128)[i], 12 + i) for i in range(6)]
    return workload(requests, **{"max_num_batched_tokens": 32} | limits)


def shared(**limits: Any) -> Workload:
    """Shared prefixes: whole blocks, one token around them, whole prompts, turns of a conversation, under pressure."""
    requests = []
    for i in range(14):
        trunk = {"seed": i % 2, "n": (64, 63, 65, 48, 96)[i % 5]}
        own = [{"seed": 7000 + i, "n": (0, 5, 17)[i % 3]}]
        prompt = [trunk] + (own if own[0]["n"] else [])
        if i in (9, 12):
            prompt = [{"seed": 1, "n": 63}, {"seed": 7001, "n": 5}, {"output_of": 1, "n": 20}]
        requests.append(request(i, 4 * (i // 2), prompt, 24 if i == 1 else 10 + 9 * (i % 3)))
    return workload(requests, **{"num_gpu_blocks": 30, "max_model_len": 256} | limits)


def turns(**limits: Any) -> Workload:
    """Conversations that end on a block's edge, one token before and after it, and go on; the same prompt twice."""
    requests = []
    for i in range(6):
        first = request(2 * i, i // 2, [{"seed": i, "n": 32}], 15 + i)
        again = [*first["prompt"], {"output_of": 2 * i, "n": 15 + i}]
        requests += [first, request(2 * i + 1, 40 + i // 3, again, 8)]
    requests.append(request(12, 70, [{"seed": 5, "n": 32}, {"seed": 9, "n": 1}], 9))
    requests.append(request(13, 72, requests[-1]["prompt"], 9))
    return workload(sorted(requests, key=lambda each: int(each["arrives_at_step"])), **limits)


def padded(**limits: Any) -> Workload:
    """Admissions that need one token, beside sequences that speculate; one that speculates up to its full length."""
    trunk, other = [{"seed": 1, "n": 33}], [{"seed": 2, "n": 30}]
    requests = [request(0, 0, 1, 79), request(1, 1, trunk, 20)]
    changed = {"max_model_len": 80, "max_num_batched_tokens": 21, "num_gpu_blocks": 9, "num_speculative_tokens": 3}
    requests += [request(2 + i, 6 + 2 * i, other if i % 3 == 1 else trunk, 9 + i) for i in range(12)]
    return workload(requests, **changed | limits)


def ranked(**limits: Any) -> Workload:
    """Priorities, with preemption of the least urgent."""
    requests = [request(i, i // 2, 30 + 11 * (i % 4), 30 + 8 * (i % 5), priority=(5 - i) % 4) for i in range(10)]
    changed = {"num_gpu_blocks": 19, "max_model_len": 256, "scheduling_policy": "priority"}
    return workload(requests, **changed | limits)


def aborted(**limits: Any) -> Workload:
    """Clients that leave: while waiting, in the middle of a prompt, while decoding, while the step runs."""
    requests = [request(i, i // 4, 50 + 9 * i, 25) for i in range(10)]
    for i, when, step in ((0, "at", 1), (2, "at", 9), (3, "in", 5), (5, "in", 12), (7, "at", 3), (9, "at", 30)):
        requests[i][f"abort_{when}_step"] = step
    changed = {"num_gpu_blocks": 24, "max_model_len": 256, "max_num_batched_tokens": 64}
    return workload(requests, **changed | limits)


NAMED: dict[str, Workload] = {
    "plain": plain(),
    "pressure": pressure(),
    "pressure-async": pressure(async_scheduling=True),
    "pressure-no-caching": pressure(enable_prefix_caching=False, watermark=0.1),
    "full-length": pressure(max_model_len=64, async_scheduling=True),
    "chunked": chunked(),
    "chunked-off": chunked(enable_chunked_prefill=False, max_num_batched_tokens=160, max_model_len=160),
    "threshold-async": chunked(long_prefill_token_threshold=20, async_scheduling=True, max_num_seqs=2),
    "shared": shared(),
    "shared-async": shared(async_scheduling=True, max_num_seqs=6),
    "turns": turns(),
    "turns-async": turns(async_scheduling=True),
    "ranked": ranked(),
    "ranked-async": ranked(async_scheduling=True, max_num_batched_tokens=48),
    "ranked-speculative": ranked(num_speculative_tokens=3, max_num_batched_tokens=16, long_prefill_token_threshold=6),
    "aborted": aborted(),
    "aborted-async": aborted(async_scheduling=True),
    "speculative": pressure(num_speculative_tokens=3, max_num_batched_tokens=40),
    "speculative-async": pressure(num_speculative_tokens=2, async_scheduling=True),
    "speculative-padded": padded(),
    "speculative-turns": turns(num_speculative_tokens=2),
    "speculative-turns-async": turns(num_speculative_tokens=3, async_scheduling=True),
}
# Those whose traces the tests hold: each feature once.
GOLDEN = (
    "pressure",
    "pressure-no-caching",
    "full-length",
    "chunked-off",
    "threshold-async",
    "shared-async",
    "turns-async",
    "ranked",
    "ranked-speculative",
    "aborted-async",
    "speculative-padded",
    "speculative-turns-async",
)


def drawn(seed: int) -> Workload:
    """A workload drawn by its seed: any of the above at once, mostly short of KV blocks."""
    rng = random.Random(seed)
    speculative = rng.choice((0, 0, 0, 1, 3))
    limits: dict[str, Any] = {
        "max_num_seqs": rng.choice((2, 4, 8, 16)),
        "max_num_batched_tokens": rng.choice((24, 48, 96, 512)),
        "max_model_len": rng.choice((96, 160, 256)),
        "num_gpu_blocks": rng.choice((18, 22, 30, 60)),
        "scheduling_policy": rng.choice(("fcfs", "fcfs", "priority")),
        "enable_chunked_prefill": rng.random() < 0.8,
        "enable_prefix_caching": rng.random() < 0.8,
        "long_prefill_token_threshold": rng.choice((0, 0, 7, 33)),
        "async_scheduling": rng.random() < 0.5,
        "num_speculative_tokens": speculative,
        "watermark": rng.choice((0.0, 0.0, 0.05, 0.15)),
    }
    if not limits["enable_chunked_prefill"]:
        limits["max_num_batched_tokens"] = max(limits["max_num_batched_tokens"], limits["max_model_len"])
    limits["max_num_seqs"] = min(limits["max_num_seqs"], limits["max_num_batched_tokens"])
    # One sequence of full length has to fit, beside the watermark too: vLLM refuses to start otherwise.
    least = -(-limits["max_model_len"] // 16) + 2
    limits["num_gpu_blocks"] = max(limits["num_gpu_blocks"], least)
    requests: list[dict[str, Any]] = []
    step = 0
    for number in range(rng.randint(4, 24)):
        step += rng.choice((0, 0, 0, 1, 3, 9))
        requests.append(_draw_request(rng, number, step, limits["max_model_len"], requests))
    return workload(requests, **limits)


def _draw_request(
    rng: random.Random, number: int, step: int, longest: int, before: list[dict[str, Any]]
) -> dict[str, Any]:
    parts: list[dict[str, int]] = []
    kind = rng.random()
    if kind < 0.4:
        parts.append({"seed": rng.randrange(3), "n": rng.choice((16, 31, 32, 33, 48, 64, 80))})
    elif kind < 0.6 and before:
        turn = rng.choice(before)
        said = rng.choice((turn["max_tokens"], rng.randint(1, turn["max_tokens"])))
        parts += [*(dict(part) for part in turn["prompt"]), {"output_of": turn["id"], "n": said}]
    if not parts or rng.random() < 0.6:
        parts.append({"seed": 7000 + number, "n": rng.choice((1, 7, 16, 30, 63, 64, 65, 90))})
    while prompt_length(parts) > longest - 8:
        parts[-1]["n"] -= prompt_length(parts) - longest + 8
        if parts[-1]["n"] <= 0:
            parts.pop()
    room = longest - prompt_length(parts)
    more: dict[str, int] = {}
    leaves = rng.random()
    if leaves < 0.15:
        more[rng.choice(("abort_at_step", "abort_in_step"))] = step + rng.randint(0, 40)
    tokens = min(room, rng.choice((1, 2, 8, 17, 30, 60, 200)))
    made = request(number, step, parts, tokens, **more)
    made["priority"] = rng.randint(0, 3)
    return made
