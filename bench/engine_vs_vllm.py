"""The embedded engine beside a running vLLM: the same requests over HTTP, what both decide, count and show.

    vllm serve MODEL --block-size 32 --num-gpu-blocks-override 60 --max-num-seqs 8 --max-model-len 1856 \\
        --max-num-batched-tokens 256
    python -m bench.engine_vs_vllm URL [--repeats N] [--async-scheduling]

The server must have no other traffic; others on the machine only make it slower. Ours is started here with the same
limits. Its law is the physics of a card, whose steps are nearly alike, at the speed that makes them last
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cadenza.clock import NS_PER_MS, NS_PER_S
from cadenza.engine.api import child
from cadenza.engine.profile import parse
from cadenza.engine.timing_laws import make_law
from cadenza.hardware.batch import Batch
from cadenza.load.sockets import SocketTransport
from cadenza.load.target import Target, resolve
from cadenza.load.transport import OPENED, Closed
from cadenza.wire.http1 import ResponseReader, encode_request

BLOCK_TOK, BLOCKS, SEQS, CONTEXT_TOK, STEP_TOK = 32, 60, 8, 1856, 256
PROFILE = f"""name = "beside"
hardware = "one MI300X, at another speed"
system.devices = ["mi300x"]
[limits]
block_size = {BLOCK_TOK}
num_gpu_blocks = {BLOCKS}
max_num_seqs = {SEQS}
max_model_len = {CONTEXT_TOK}
max_num_batched_tokens = {STEP_TOK}
async_scheduling = {{asynchronous}}
[[models]]
name = "{{model}}"
architecture = "qwen3-8b"
"""
GAPS = "inter_token_latency_seconds"
WITHIN_S = 120.0
POLL_S = 0.02
# Two stamps nearer than this say nothing of which came first: the two clocks behind them are read apart.
APART_NS = 100_000
REQUESTS = 24
_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

# What is no decision: times, gauges, settings, and estimates of work.
_NO_COUNT = re.compile("_seconds|_created|_info|^num_requests|usage_perc|_state|^estimated")
COUNTED = {
    "preemptions": "num_preemptions_total",
    "steps that gave tokens": "iteration_tokens_total_count",
    "prompt tokens looked up": "prefix_cache_queries_total",
    "prompt tokens found cached": "prefix_cache_hits_total",
    "output tokens": "generation_tokens_total",
}
PEAKS = {
    "peak running, polled": "num_requests_running",
    "peak waiting, polled": "num_requests_waiting",
    "peak KV usage, polled": "kv_cache_usage_perc",
}
Counts = dict[str, float]


class Ask(NamedTuple):
    """One request: token ids, and how many tokens it is answered with."""

    prompt: list[int]
    output_tok: int


class Phase(NamedTuple):
    """`gated`: the requests wait behind a gate; `gap_ms` lies between two; `draw` takes chance for lengths, for ids."""

    name: str
    gated: bool
    gap_ms: float
    draw: Callable[[random.Random, random.Random], list[Ask]]


class Seen(NamedTuple):
    """One phase at one server: counters' growth, polled peaks by gauge, requests' first and last tokens.

    first_ns is negative where the client read late, and took several tokens with the stamp of the last.
    """

    counts: Counts
    peaks: Counts
    first_ns: list[int]
    last_ns: list[int]


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(10, 4000) for _ in range(count)]


def unique(lengths: random.Random, ids: random.Random) -> list[Ask]:
    """Prompts that have nothing in common: at least five blocks each, six to eleven with their answers."""
    return [Ask(_ids(ids, lengths.randrange(130, 210)), lengths.randrange(60, 130)) for _ in range(REQUESTS)]


def shared(lengths: random.Random, ids: random.Random) -> list[Ask]:
    """Four prefixes, on a block's edge or within a token of it, each with six ends."""
    prefixes = [_ids(ids, count) for count in (95, 96, 97, 128)]
    return [
        Ask(prefixes[n % 4] + _ids(ids, lengths.randrange(60, 130)), lengths.randrange(100, 200))
        for n in range(REQUESTS)
    ]


STAMPS: dict[str, Callable[[Seen], list[int]]] = {
    "first": lambda seen: seen.first_ns,
    "last": lambda seen: seen.last_ns,
}
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
    """Everything on /metrics by name and labels, without the model's name and the engine's number."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    counts: Counts = {}
    for name, labels, value in _SAMPLE.findall(page):
        kept = [f"{key}={text}" for key, text in _LABEL.findall(labels) if key not in ("engine", "model_name")]
        counts[f"{name}{{{','.join(sorted(kept))}}}" if kept else name] = float(value)
    return counts


@contextmanager
def polled(url: str) -> Iterator[Counts]:
    """The highest of each gauge, looked at every 20 ms while the block lasts."""
    peaks: Counts = dict.fromkeys(PEAKS.values(), 0.0)
    over = threading.Event()

    def look() -> None:
        while not over.wait(POLL_S):
            counts = read_counts(url)
            for name in PEAKS.values():
                peaks[name] = max(peaks[name], counts[name])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join(30)


class _Client:
    """`count` connections to one server, a request on each, and the kernel's stamps of first and last tokens."""

    def __init__(self, transport: SocketTransport, target: Target, model: str, count: int) -> None:
        self._transport, self._target, self._model = transport, target, model
        self._asks = [transport.connect(target.origin) for _ in range(count)]
        self._readers = {connection: ResponseReader() for connection in self._asks}
        self.first_ns: dict[int, int] = {}
        self.last_ns: dict[int, int] = {}
        opened = 0
        while opened < count:
            opened += sum(arrival[2] is OPENED for arrival in transport.poll(self._until(10)))

    def send(self, number: int, ask: Ask) -> None:
        """Request `number` on its connection, as a stream."""
        body = {"model": self._model, "prompt": ask.prompt, "max_tokens": ask.output_tok, "ignore_eos": True}
        text = json.dumps({**body, "temperature": 0, "stream": True}).encode()
        path, headers = self._target.path("/v1/completions"), [("Content-Type", "application/json")]
        data = encode_request("POST", path, self._target.authority, headers, text)
        self._transport.send(self._asks[number], data)

    def read(self, until_ns: int) -> None:
        """Take in what comes until then, or one look's worth of it."""
        for connection, stamp_ns, payload, _ in self._transport.poll(until_ns):
            if isinstance(payload, Closed) and not self._readers[connection].complete:
                sys.exit(f"{self._target.url} closed a connection: {payload.reason}")
            if not isinstance(payload, bytes):
                continue
            reader = self._readers[connection]
            reader.feed(payload)
            if reader.status not in (None, 200):
                sys.exit(f"{self._target.url} answered {reader.status}: {reader.take().decode(errors='replace')}")
            if events := reader.take().count(b'"choices":[{'):
                self.first_ns.setdefault(connection, stamp_ns if events == 1 else -1)
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


def drive(url: str, model: str, phase: Phase, lengths: int, ids: int) -> Seen:
    """One phase, with the lengths and the token ids of these seeds. The gate, where there is one, is request 0."""
    chance = random.Random(f"{phase.name} {ids}")
    asks = ([gate(chance)] if phase.gated else []) + phase.draw(random.Random(f"{phase.name} {lengths}"), chance)
    before = read_counts(url)
    with SocketTransport() as transport, polled(url) as peaks:
        client = _Client(transport, resolve(url), model, len(asks))
        if phase.gated:
            client.send(0, asks[0])
            client.wait(lambda: bool(client.first_ns))
        for number in range(int(phase.gated), len(asks)):
            client.send(number, asks[number])
            if phase.gap_ms:
                client.pause(phase.gap_ms)
        sent_ns = transport.clock.now_ns()
        client.wait(client.complete)
    last_ns = client.stamps(client.last_ns)
    if phase.gated and last_ns[0] < sent_ns + 20 * NS_PER_MS:
        sys.exit(f"{url}: the gate ended too soon after the last request had been sent")
    return Seen(_growth(url, before, len(asks)), peaks, client.stamps(client.first_ns), last_ns)


def _growth(url: str, before: Counts, requests: int) -> Counts:
    """What the counters have grown by, once all requests are counted as ended."""
    for _ in range(100):
        after = read_counts(url)
        grown = {name: value - before[name] for name, value in after.items() if not _NO_COUNT.search(name)}
        if grown["request_success_total{finished_reason=length}"] == requests and not after["num_requests_running"]:
            return grown
        time.sleep(0.05)
    sys.exit(f"{url} does not count all {requests} requests as ended: is there other traffic?")


def swapped(these_ns: list[int], those_ns: list[int]) -> int:
    """Pairs of requests that came one way round here and the other way round there, by 0.1 ms or more in both."""
    count = 0
    for second in range(len(these_ns)):
        for first in range(second):
            here, there = these_ns[second] - these_ns[first], those_ns[second] - those_ns[first]
            known = min(these_ns[first], these_ns[second], those_ns[first], those_ns[second]) >= 0
            count += known and min(abs(here), abs(there)) >= APART_NS and (here > 0) != (there > 0)
    return count


def _measures() -> dict[str, Callable[[Seen], float]]:
    """What a row shows of one phase at one server, by its title."""

    def counted(name: str) -> Callable[[Seen], float]:
        return lambda seen: seen.counts[name]

    def peak(name: str) -> Callable[[Seen], float]:
        return lambda seen: round(seen.peaks[name], 3)

    def not_as_sent(stamps_ns: list[int]) -> int:
        return swapped(stamps_ns, [number * NS_PER_S for number in range(len(stamps_ns))])

    return {
        "pairs not as sent, by first token": lambda seen: not_as_sent(seen.first_ns),
        "first tokens read late: left out": lambda seen: sum(stamp_ns < 0 for stamp_ns in seen.first_ns),
        "pairs not as sent, by last token": lambda seen: not_as_sent(seen.last_ns),
        **{title: counted(name) for title, name in COUNTED.items()},
        **{title: peak(name) for title, name in PEAKS.items()},
    }


def unlike(these: list[Seen], those: list[Seen]) -> list[str]:
    """Counters and histograms (buckets, count and sum) that are not the same in every pair."""
    pairs = list(zip(these, those, strict=True))
    names = these[0].counts.keys() & those[0].counts.keys()
    different = {name for name in names if any(one.counts[name] != other.counts[name] for one, other in pairs)}
    return sorted({re.sub(r"(_bucket|_count|_sum)?(\{le=.*\})?$", "", name) for name in different})


def rows(real: list[Seen], ours: list[Seen], again: list[Seen]) -> Iterator[tuple[str, ...]]:
    """A table: what, vLLM's, ours, vLLM's once more, pairs of runs in which ours differs, in which vLLM does."""

    def cells(title: str, of: Callable[[Seen], float]) -> tuple[str, ...]:
        sides = [[of(seen) for seen in side] for side in (real, ours, again)]
        differ = [sum(a != b for a, b in zip(sides[0], side, strict=True)) for side in sides[1:]]
        return title, *(_range(side) for side in sides), *(str(count or "same") for count in differ)

    for title, of in _measures().items():
        yield cells(title, of)
    for title, stamps in STAMPS.items():
        pairs = [[swapped(stamps(a), stamps(b)) for a, b in zip(real, side, strict=True)] for side in (ours, again)]
        turned = [_range(side) if any(side) else "same" for side in pairs]
        yield f"pairs not as vLLM's, by {title} token", "", *(_range(side) for side in pairs), *turned
    series = len(real[0].counts.keys() & ours[0].counts.keys())
    differ = [len(unlike(real, side)) for side in (ours, again)]
    yield f"all {series} series of counters and buckets", "", "", "", *(f"{n} differ" if n else "same" for n in differ)


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:g}" if found[0] == found[-1] else f"{found[0]:g} to {found[-1]:g}"


def settle(url: str, model: str) -> float:
    """Mean time between two tokens of eight that decode together, in ms, by the server's own histogram."""
    calibration = Phase("", False, 0, lambda _, ids: [Ask(_ids(ids, 40), 100) for _ in range(SEQS)])
    drive(url, model, calibration, 0, time.time_ns())  # the first steps of a new server are slow
    before = read_counts(url)
    drive(url, model, calibration, 0, time.time_ns())
    after = read_counts(url)
    total_s, count = (after[name] - before[name] for name in (f"{GAPS}_sum", f"{GAPS}_count"))
    return 1000 * total_s / count


def check_limits(url: str) -> str:
    """The name of the model served; exits where the server's limits are not those that the phases are made for."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        model = json.load(answer)["data"][0]
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        info = re.search(r"^vllm:cache_config_info\{(.*)\}", answer.read().decode(), re.MULTILINE)
    cache = dict(_LABEL.findall(info[1])) if info else {}
    found = (cache.get("block_size"), cache.get("num_gpu_blocks"), str(model["max_model_len"]))
    wanted = (str(BLOCK_TOK), str(BLOCKS), str(CONTEXT_TOK))
    if found != wanted:
        sys.exit(f"(block size, blocks, context) are {found}, not {wanted}: start it with the flags that --help names")
    return str(model["id"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the vLLM")
    parser.add_argument("--repeats", type=int, default=4, help="of each phase, with other lengths (default: 4)")
    parser.add_argument("--async-scheduling", action="store_true", help="the server does so: on a GPU, not on a CPU")
    args = parser.parse_args()
    model = check_limits(args.url)
    text = PROFILE.format(model=model, asynchronous=str(args.async_scheduling).lower())
    ours = parse(text)
    step_ms = settle(args.url, model)
    law_ms = make_law(ours, ours.models[0]).step_ns(Batch(SEQS, SEQS, 0, 900, 900), 0.5) / NS_PER_MS
    print(f"step of {SEQS}: {step_ms:.2f} ms; the law's {law_ms:.2f} ms run {law_ms / step_ms:.2f} times as fast")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "beside.toml"
        file.write_text(text)
        with child.start(str(file), law_ms / step_ms) as engine:
            settle(engine.url, model)
            results = [report(args.url, engine.url, model, phase, args.repeats) for phase in PHASES]
    return 0 if all(results) else 1


def report(url: str, ours: str, model: str, phase: Phase, repeats: int) -> bool:
    """Run a phase at both, and at the vLLM once more; print the table. Whether it came out as it has to."""
    real, other, again = [], [], []
    for seed in range(repeats):
        real.append(drive(url, model, phase, seed, ids=2 * seed))
        other.append(drive(ours, model, phase, seed, ids=2 * seed))
        again.append(drive(url, model, phase, seed, ids=2 * seed + 1))
    print(f"\n## {phase.name[0].upper()}{phase.name[1:]}\n\n{repeats} times {REQUESTS} requests.\n")
    print("| | vLLM | ours | vLLM again | ours differs | vLLM differs |\n| :--- | ---: | ---: | ---: | ---: | ---: |")
    for cells in rows(real, other, again):
        print(f"| {' | '.join(cells)} |")
    for who, side in (("Ours", other), ("vLLM again", again)):
        if names := unlike(real, side):
            print(f"\n{who} differs in {', '.join(names)}.")
    sys.stdout.flush()
    turned = any(swapped(of(a), of(b)) for of in STAMPS.values() for a, b in zip(real, other, strict=True))
    return not phase.gated or not (turned or unlike(real, other))


if __name__ == "__main__":
    sys.exit(main())
