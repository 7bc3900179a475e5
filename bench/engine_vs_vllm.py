"""The embedded engine beside a running vLLM: the same requests over HTTP, what both decide, count and show.

    vllm serve MODEL --block-size 32 --num-gpu-blocks-override 60 --max-num-seqs 8 --max-model-len 1856 \\
        --max-num-batched-tokens 256
    python -m bench.engine_vs_vllm URL [--repeats N] [--async-scheduling]

The server must have no other traffic, and should have been started anew: both caches begin empty. Ours is started here
with the same limits. Its law is the physics of a card, whose steps are nearly alike, at the speed that makes them last
as long as the server's. Exits 1 where a phase that does not depend on time differs.

Such a phase begins with a gate: one long prompt that leaves fewer blocks free than any other request needs. While it
decodes, all others arrive and wait; once it ends, what is decided is a function of the requests alone. In the open
phases there is none, and every arrival meets a step at another place.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.clock import NS_PER_MS, NS_PER_S
from cadenza.engine import child
from cadenza.engine.laws.catalogue import make_law
from cadenza.engine.profile import parse
from cadenza.hardware.batch import Batch
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import Target, resolve
from cadenza.load.transport import OPENED, Closed
from cadenza.wire.http1 import ResponseReader, encode_request

BLOCK_TOK, BLOCKS, SEQS, CONTEXT_TOK, STEP_TOK = 32, 60, 8, 1856, 256
PROFILE = """name = "beside"
hardware = "one MI300X, at another speed"
[system]
devices = ["mi300x"]
[limits]
block_size = {block}
num_gpu_blocks = {blocks}
max_num_seqs = {seqs}
max_model_len = {context}
max_num_batched_tokens = {step}
async_scheduling = {asynchronous}
[[models]]
name = "{model}"
architecture = "qwen3-8b"
"""
WITHIN_S = 120.0
POLL_S = 0.02
# Two stamps nearer than this say nothing of which came first: the two clocks behind them are read apart.
APART_NS = 100_000
REQUESTS = 24
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Counts = dict[str, float]


class Ask(NamedTuple):
    """One request: token ids, and how many tokens it is answered with."""

    prompt: list[int]
    output_tok: int


class Phase(NamedTuple):
    """`gated`: the requests wait behind a gate; `gap_ms` lies between two of them. `draw` makes them, by seed."""

    name: str
    gated: bool
    gap_ms: float
    draw: Callable[[random.Random], list[Ask]]


class Seen(NamedTuple):
    """One phase at one server: counters' growth, polled peaks by gauge, and requests by first and by last token."""

    counts: Counts
    peaks: Counts
    first_ns: list[int]
    last_ns: list[int]
    polls: int


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(10, 4000) for _ in range(count)]


def unique(rng: random.Random) -> list[Ask]:
    """Prompts that have nothing in common: at least five blocks each, seven to ten with their answers."""
    return [Ask(_ids(rng, rng.randrange(130, 210)), rng.randrange(60, 130)) for _ in range(REQUESTS)]


def shared(rng: random.Random) -> list[Ask]:
    """Four prefixes, within a token of a block's edge or on it, each with six ends."""
    prefixes = [_ids(rng, count) for count in (95, 96, 97, 128)]
    return [Ask(prefixes[n % 4] + _ids(rng, rng.randrange(60, 130)), rng.randrange(60, 130)) for n in range(REQUESTS)]


PHASES = (
    Phase("unique prompts, behind a gate", True, 2, unique),
    Phase("shared prefixes, behind a gate", True, 2, shared),
    Phase("unique prompts, all at once", False, 0, unique),
    Phase("unique prompts, 20 ms apart", False, 20, unique),
)


def gate(rng: random.Random) -> Ask:
    """55 of 59 blocks, and 58 at its end: no other request finds its five."""
    return Ask(_ids(rng, 55 * BLOCK_TOK), 95)


def read_counts(url: str) -> Counts:
    """Everything on /metrics by name and labels, but for times, the model's name and the engine's number."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    counts: Counts = {}
    for name, labels, value in _SAMPLE.findall(page):
        if "_seconds" in name or name.endswith(("_created", "_info")):
            continue
        kept = [f"{key}={text}" for key, text in _LABEL.findall(labels) if key not in ("engine", "model_name")]
        counts[f"{name.removeprefix('vllm:')}{{{','.join(sorted(kept))}}}" if kept else name[5:]] = float(value)
    return counts


@contextmanager
def polled(url: str) -> Iterator[tuple[Counts, list[int]]]:
    """The highest of each gauge, looked at every 20 ms while the block lasts, and how often it was."""
    peaks: Counts = dict.fromkeys(GAUGES, 0.0)
    polls = [0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            counts = read_counts(url)
            for name in GAUGES:
                peaks[name] = max(peaks[name], counts[name])
            polls[0] += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks, polls
    finally:
        over.set()
        thread.join(30)


class _Client:
    """Connections to one server: requests sent when told, and the kernel's stamps of their first and last tokens."""

    def __init__(self, transport: SocketTransport, target: Target, model: str) -> None:
        self._transport, self._target, self._model = transport, target, model
        self._asks: list[int] = []
        self._readers: dict[int, ResponseReader] = {}
        self.first_ns: dict[int, int] = {}
        self.last_ns: dict[int, int] = {}

    def connect(self, count: int) -> None:
        connections = [self._transport.connect(self._target.origin) for _ in range(count)]
        opened = 0
        while opened < count:
            opened += sum(arrival[2] is OPENED for arrival in self._transport.poll(self._until(10)))
        self._asks += connections
        self._readers |= {connection: ResponseReader() for connection in connections}

    def send(self, number: int, ask: Ask) -> None:
        """Request `number` on its connection, as a stream."""
        body = {"model": self._model, "prompt": ask.prompt, "max_tokens": ask.output_tok, "ignore_eos": True}
        text = json.dumps({**body, "temperature": 0, "stream": True}).encode()
        headers = [("Content-Type", "application/json")]
        data = encode_request(
            "POST", self._target.path("/v1/completions"), self._target.authority, headers=headers, body=text
        )
        self._transport.send(self._asks[number], data)

    def read(self, until_ns: int) -> None:
        """Take in what comes until then, or one look's worth of it."""
        for connection, stamp_ns, payload, _ in self._transport.poll(until_ns):
            if isinstance(payload, Closed):
                sys.exit(f"{self._target.url} closed a connection: {payload.reason}")
            if not isinstance(payload, bytes):
                continue
            reader = self._readers[connection]
            reader.feed(payload)
            if reader.status not in (None, 200):
                sys.exit(f"{self._target.url} answered {reader.status}: {reader.take().decode(errors='replace')}")
            if b"data: " in (said := reader.take()):
                self.first_ns.setdefault(connection, stamp_ns)
                if b'"choices":[{' in said:
                    self.last_ns[connection] = stamp_ns

    def wait(self, done: Callable[[], bool]) -> None:
        """Read until `done()`."""
        until = self._until(WITHIN_S)
        while not done():
            if self._transport.clock.now_ns() > until:
                sys.exit(f"{self._target.url} did not answer within {WITHIN_S:.0f} s")
            self.read(self._until(0.05))

    def pause(self, ms: float) -> None:
        until = self._until(ms / 1000)
        while self._transport.clock.now_ns() < until:
            self.read(until)

    def complete(self) -> bool:
        return all(reader.complete for reader in self._readers.values())

    def stamps(self, of: dict[int, int]) -> list[int]:
        """Of each request, in the order in which they were sent."""
        return [of[connection] for connection in self._asks]

    def _until(self, seconds: float) -> int:
        return self._transport.clock.now_ns() + round(seconds * NS_PER_S)


def drive(url: str, model: str, phase: Phase, seed: int) -> Seen:
    """One phase. The gate, where there is one, is request 0."""
    rng = random.Random(f"{phase.name} {seed}")
    asks = ([gate(rng)] if phase.gated else []) + phase.draw(rng)
    before = read_counts(url)
    with SocketTransport() as transport, polled(url) as (peaks, polls):
        client = _Client(transport, resolve(url), model)
        client.connect(len(asks))
        if phase.gated:
            client.send(0, asks[0])
            client.wait(lambda: bool(client.first_ns))
        for number in range(int(phase.gated), len(asks)):
            client.send(number, asks[number])
            if phase.gap_ms:
                client.pause(phase.gap_ms)
        in_time = not phase.gated or not client.complete_first()
        client.wait(client.complete)
    if not in_time:
        sys.exit(f"{url}: the gate ended before all requests had been sent")
    return Seen(_growth(url, before, len(asks)), peaks, client.stamps(client.first_ns), client.stamps(client.last_ns), polls[0])


def _growth(url: str, before: Counts, requests: int) -> Counts:
    """What the counters have grown by, once all requests are counted as ended."""
    for _ in range(100):
        after = read_counts(url)
        grown = {name: value - before.get(name, 0) for name, value in after.items() if name not in GAUGES}
        if grown["request_success_total{finished_reason=length}"] >= requests and not after[GAUGES[0]]:
            return grown
        time.sleep(0.05)
    sys.exit(f"{url} does not count all {requests} requests as ended: is there other traffic?")
