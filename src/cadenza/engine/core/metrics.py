"""What the engine counts, as vLLM 0.32 defines it: counters, and histograms that take equal values together.

Pure: every time comes in as engine nanoseconds. `exposition` puts it on a page.
"""

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Values
from typing import Literal, NamedTuple, get_args

from cadenza.clock import NS_PER_S
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.hardware.batch import Batch

Reason = Literal["stop", "length", "abort", "error", "repetition"]
Rejection = Literal["max_num_queued_reqs", "max_num_queued_tokens"]

# Upper bounds of vLLM 0.32's buckets (vllm/v1/metrics/buckets.py), in seconds, tokens or times.
_LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_ITERATION_TOK = (1, *(2**power for power in range(3, 15)))
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class Gauges(NamedTuple):
    """The scheduler's state at one instant.

    running           sequences admitted
    waiting           sequences that wait, the deferred among them
    kv_cache_usage    share of the KV blocks in use, 0 to 1
    waiting_deferred  those held back by something other than room (LoRA, KV transfer)
    """

    running: int
    waiting: int
    kv_cache_usage: float
    waiting_deferred: int = 0


class Histogram:
    """Observations by bucket, each bound inclusive, and their sum. `unit` is how many of what is observed make one."""

    __slots__ = ("_edges", "bounds", "counts", "sum", "unit")

    def __init__(self, bounds: Values[float], unit: int = 1) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.unit = unit
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0
        # In the observations' own unit, so that a whole number of ns meets a whole number of ns.
        self._edges = tuple(round(bound * unit) for bound in bounds)

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self._edges, value)] += count
        self.sum += value * count


class Metrics:
    """The life of one engine, counted. vLLM's names stand in `exposition`; the meanings are vLLM 0.32's.

    Calls for one pass: `cache_looked_up` and `preempted` as it is decided, then, at its end, `first_token` for each
    sequence whose prompt is done, `speculated` if it speculates, `stepped`, and `ended` for each that is over.

    A prompt counts when its first token comes, not chunk by chunk: vLLM hears nothing of a prompt that is half
    computed. What the passes computed, recomputation included, is in `steps`, `step_prefill_tok` and
    `step_decode_tok`, which vLLM has not.

    limits  with `num_gpu_blocks` resolved, if the page is to tell it
    """

    def __init__(self, model: str, limits: Limits, engine: int = 0) -> None:
        self.model = model
        self.limits = limits
        self.engine = engine
        self.arrivals = 0
        self.prompt_tok = 0
        self.prompt_cached_tok = 0
        self.generated_tok = 0
        self.preemptions = 0
        self.cache_queries_tok = 0
        self.cache_hits_tok = 0
        self.endings: dict[str, int] = dict.fromkeys(get_args(Reason), 0)
        self.rejections: dict[str, int] = dict.fromkeys(get_args(Rejection), 0)
        self.drafts = 0
        self.draft_tok = 0
        self.accepted = [0] * limits.num_speculative_tokens
        self.steps = 0
        self.step_prefill_tok = 0
        self.step_decode_tok = 0
        self.histograms = _histograms(limits.max_model_len)
        self._gaps = self.histograms["inter_token_latency_seconds"]
        self._iterations = self.histograms["iteration_tokens_total"]
        self._first_tok = 0
        self._cached: dict[int, int] = {}

    def arrived(self, sequence: Sequence) -> None:
        """`sequence` has joined the queue."""
        self.arrivals += 1

    def rejected(self, reason: Rejection) -> None:
        """A request was turned away (503) by a limit of the queue."""
        self.rejections[reason] += 1

    def cache_looked_up(self, queries_tok: int, hits_tok: int) -> None:
        """A sequence was admitted for the first time; after a preemption vLLM does not count the look-up."""
        self.cache_queries_tok += queries_tok
        self.cache_hits_tok += hits_tok

    def preempted(self, count: int) -> None:
        self.preemptions += count

    def first_token(self, sequence: Sequence, now_ns: int) -> None:
        """`sequence`'s prompt is done and its first token produced: before the `stepped` of that pass.

        TTFT = now − arrival. `sequence.cached` is read here, for `ended` too.
        """
        cached = sequence.cached
        self._cached[sequence.id] = cached
        self.prompt_tok += sequence.prompt_tokens
        self.prompt_cached_tok += cached
        self.generated_tok += 1
        self._first_tok += sequence.prompt_tokens - cached + 1
        self.histograms["time_to_first_token_seconds"].observe(now_ns - sequence.arrival_ns)

    def speculated(self, drafts: int, draft_tok: int, accepted: Values[int]) -> None:
        """`drafts` sequences proposed `draft_tok` tokens; `accepted[i]` of them had their i-th accepted."""
        self.drafts += drafts
        self.draft_tok += draft_tok
        for position, count in enumerate(accepted):
            self.accepted[position] += count

    def stepped(self, batch: Batch, gaps_ns: Mapping[int, int], generated_tok: int | None = None) -> None:
        """A pass has ended.

        gaps_ns        time since a sequence's last token → how many sequences had it; first tokens have no gap
        generated_tok  tokens that those sequences produced; None: one each

        A pass that gave nobody a token (all of it half-computed prompts) is no iteration to vLLM; one that did
        counts its tokens, and of the prompts that it finished all that had to be computed, in whatever pass.
        """
        sequences = 0
        for gap_ns, count in gaps_ns.items():
            self._gaps.observe(gap_ns, count)
            sequences += count
        generated = sequences if generated_tok is None else generated_tok
        self.generated_tok += generated
        if iteration_tok := generated + self._first_tok:
            self._iterations.observe(iteration_tok)
            self._first_tok = 0
        self.steps += 1
        self.step_prefill_tok += batch.prefill_tok
        self.step_decode_tok += batch.decode_tok

    def ended(self, sequence: Sequence, reason: Reason, now_ns: int, generated_tok: int | None = None) -> None:
        """`sequence` is over, with `generated_tok` tokens; None: all that it produced.

        An interval that it did not live to see is not observed.

            e2e = now − arrival        queue = first scheduled − arrival      prefill = first token − first scheduled
            decode = last − first      inference = last token − scheduled     TPOT = decode / (n − 1), 0 for n = 1

        An abort is counted and nothing else: vLLM keeps an abandoned request out of its histograms. (It keeps it
        out of the count too; here arrivals − endings are the requests in the system.) An error is observed like
        any other end; of one before the first token vLLM observes a time to first token besides.
        """
        self.endings[reason] += 1
        cached = self._cached.pop(sequence.id, None)
        if reason == "abort":
            return
        prompt_tok = sequence.prompt_tokens
        produced = sequence.produced if generated_tok is None else generated_tok
        room = max(0, self.limits.max_model_len - prompt_tok)
        observed: dict[str, float] = {
            "e2e_request_latency_seconds": now_ns - sequence.arrival_ns,
            "request_prompt_tokens": prompt_tok,
            "request_generation_tokens": produced,
            "request_max_num_generation_tokens": produced,
            "request_params_n": 1,
            "request_num_preemptions": sequence.preemptions,
        }
        # vLLM's server fills in the room that the context leaves, and cuts what is asked for to it.
        if asked := room if sequence.max_tokens is None else min(sequence.max_tokens, room):
            observed["request_params_max_tokens"] = asked
        if sequence.scheduled_ns or produced:
            observed["request_queue_time_seconds"] = sequence.scheduled_ns - sequence.arrival_ns
        if produced:
            decode_ns = sequence.last_token_ns - sequence.first_token_ns
            observed["request_prefill_time_seconds"] = sequence.first_token_ns - sequence.scheduled_ns
            observed["request_decode_time_seconds"] = decode_ns
            observed["request_inference_time_seconds"] = sequence.last_token_ns - sequence.scheduled_ns
            observed["request_time_per_output_token_seconds"] = decode_ns / (produced - 1) if produced > 1 else 0
        if cached is not None:
            observed["request_prefill_kv_computed_tokens"] = prompt_tok - cached
        for name, value in observed.items():
            self.histograms[name].observe(value)


def _histograms(max_model_len: int) -> dict[str, Histogram]:
    """One for each of vLLM's families, by its name without the prefix, in vLLM's order."""
    tokens = _one_two_five(max_model_len)
    return {
        "request_prompt_tokens": Histogram(tokens),
        "request_generation_tokens": Histogram(tokens),
        "iteration_tokens_total": Histogram(_ITERATION_TOK),
        "request_max_num_generation_tokens": Histogram(tokens),
        "request_params_n": Histogram(_CHOICES),
        "request_params_max_tokens": Histogram(tokens),
        "time_to_first_token_seconds": Histogram(_FIRST_TOKEN_S, NS_PER_S),
        "inter_token_latency_seconds": Histogram(_GAP_S, NS_PER_S),
        "request_time_per_output_token_seconds": Histogram(_GAP_S, NS_PER_S),
        "e2e_request_latency_seconds": Histogram(_LATENCY_S, NS_PER_S),
        "request_queue_time_seconds": Histogram(_LATENCY_S, NS_PER_S),
        "request_inference_time_seconds": Histogram(_LATENCY_S, NS_PER_S),
        "request_prefill_time_seconds": Histogram(_LATENCY_S, NS_PER_S),
        "request_decode_time_seconds": Histogram(_LATENCY_S, NS_PER_S),
        "request_num_preemptions": Histogram(_PREEMPTIONS),
        "request_prefill_kv_computed_tokens": Histogram(tokens),
    }


def _one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to and with `most`."""
    series = [digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5)]
    return [value for value in series if value <= most]
