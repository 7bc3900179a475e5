"""The scheduler of a real vLLM 0.32, driven without a model, and what it decided at every step.

    VLLM_TARGET_DEVICE=cpu HF_HUB_OFFLINE=1 PYTHON_OF_VLLM -m bench.scheduler.record_vllm MODEL WORKLOADS TRACES

Runs inside the environment that vLLM is installed in; MODEL is any dense checkpoint, of which only the config is read
(its window has to be as long as the workloads' max_model_len). WORKLOADS, a JSON file, holds workloads by name
(workloads.py says what one is); TRACES gets each with "vllm" and "steps" added. The loop is that of vLLM's engine
core, `step` or, under async scheduling, `step_with_batch_queue`: step k+1 is decided before the result of step k is
taken in. Speculation is vLLM's ngram method: no slots beyond the proposed tokens, nothing of a prefix hit dropped.

One entry of "steps" per turn of that loop, empty fields left out:

    scheduled   [[id, tokens], ...] in the scheduler's order
    admitted    [[id, cached tokens], ...] those of `scheduled` that came out of the queue
    preempted   [id, ...] in order
    finished    [id, ...] that ended when a result was taken in after this step was decided (async: the step before)
    running, waiting, kv_usage   after the step was decided, before any result was taken in
    blocks      a checksum of the block ids that the running sequences hold, at the same time
"""

# vLLM and torch live in that environment, not in ours.
# mypy: disable-error-code="import-not-found"

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.scheduler_workloads import Workload, accepted_tokens, block_sum, output_token, prompt_tokens

MAX_STEPS = 20_000


def make_config(model: str, limits: dict[str, Any]) -> Any:
    """vLLM's own config for these limits."""
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    model_config = ModelConfig(model=model, max_model_len=limits["max_model_len"], seed=0, dtype="float32")
    cache_config = CacheConfig(block_size=limits["block_size"], enable_prefix_caching=limits["enable_prefix_caching"])
    scheduler_config = SchedulerConfig(
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=limits["max_num_batched_tokens"],
        max_model_len=limits["max_model_len"],
        is_encoder_decoder=False,
        policy=limits["scheduling_policy"],
        enable_chunked_prefill=limits["enable_chunked_prefill"],
        long_prefill_token_threshold=limits["long_prefill_token_threshold"],
        watermark=limits["watermark"],
        async_scheduling=False,
    )
    speculative = None
    if limits["num_speculative_tokens"]:
        speculative = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=limits["num_speculative_tokens"],
            prompt_lookup_max=3,
            target_model_config=model_config,
            target_parallel_config=ParallelConfig(),
        )
    config = VllmConfig(
        model_config=model_config,
        cache_config=cache_config,
        scheduler_config=scheduler_config,
        device_config=DeviceConfig("cpu"),
        speculative_config=speculative,
    )
    # The platform may have its own idea of a block, and of whether to schedule ahead: the limits decide.
    config.cache_config.block_size = limits["block_size"]
    config.cache_config.num_gpu_blocks = limits["num_gpu_blocks"]
    config.scheduler_config.enable_chunked_prefill = limits["enable_chunked_prefill"]
    config.scheduler_config.async_scheduling = limits["async_scheduling"]
    return config


def make_scheduler(config: Any, limits: dict[str, Any]) -> Any:
    """vLLM's scheduler, its KV cache one group of full attention."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(block_size=limits["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=limits["num_gpu_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits["block_size"],
        log_stats=False,
    )


class Runner:
    """Stands in for the model: every sequence that is past its prompt gets its next token, and the accepted ones."""

    def __init__(self, speculative: int) -> None:
        self._speculative = speculative
        self._produced: dict[str, int] = {}

    def execute(self, scheduler: Any, step: Any, admitted: set[str]) -> Any:
        """What the step samples, decided when it is scheduled."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            if scheduler.requests[name].is_prefill_chunk:
                sampled.append([])
                continue
            produced = self._produced.get(name, 0)
            proposed = len(step.scheduled_spec_decode_tokens.get(name, ()))
            # A sequence fresh from the queue has nothing proposed: vLLM pads it, and nothing of that can be accepted.
            accepted = 0 if name in admitted else accepted_tokens(int(name), produced, proposed)
            sampled.append([output_token(int(name), produced + n) for n in range(1, accepted + 2)])
            self._produced[name] = produced + accepted + 1
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def drafts(self, step: Any) -> Any:
        """Proposed tokens for every sequence of the step."""
        from vllm.v1.outputs import DraftTokenIds

        names = list(step.num_scheduled_tokens)
        return DraftTokenIds(names, [[1] * self._speculative for _ in names])


class Drive:
    """One workload through one scheduler."""

    def __init__(self, model: str, workload: Workload) -> None:
        self._limits = limits = workload["limits"]
        self._requests = workload["requests"]
        config = make_config(model, limits)
        self._hasher = make_hasher(config, limits)
        self._scheduler = make_scheduler(config, limits)
        self._runner = Runner(limits["num_speculative_tokens"])
        self._flying: deque[tuple[Any, Any]] = deque()
        self._depth = 2 if limits["async_scheduling"] else 1
        self._preempted: list[str] = []
        preempt = self._scheduler._preempt_request

        def noted(request: Any, *more: Any, **named: Any) -> None:
            self._preempted.append(request.request_id)
            preempt(request, *more, **named)

        self._scheduler._preempt_request = noted

    def run(self) -> list[dict[str, Any]]:
        """The steps, until every request has ended."""
        steps: list[dict[str, Any]] = []
        last = max(request["arrives_at_step"] for request in self._requests)
        while len(steps) <= last or self._flying or self._scheduler.get_num_unfinished_requests():
            if len(steps) == MAX_STEPS:
                raise RuntimeError(f"{MAX_STEPS} steps, and requests are left: one of them can never run")
            steps.append(self._turn(len(steps)))
        return steps

    def _turn(self, number: int) -> dict[str, Any]:
        scheduler = self._scheduler
        for request in self._requests:
            if request["arrives_at_step"] == number:
                scheduler.add_request(self._make(request))
        self._abort("abort_at_step", number)
        before = {request.request_id for request in scheduler.running}
        self._preempted.clear()
        step = scheduler.schedule()
        cached = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        old = step.scheduled_cached_reqs
        cached |= dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        fresh = [name for name in step.num_scheduled_tokens if name not in before]
        running, waiting = scheduler.get_request_counts()
        entry: dict[str, Any] = {
            "scheduled": [[int(name), tokens] for name, tokens in step.num_scheduled_tokens.items()],
            "admitted": [[int(name), cached[name]] for name in fresh],
            "preempted": [int(name) for name in self._preempted],
            "finished": [],
            "running": running,
            "waiting": waiting,
            "kv_usage": round(scheduler.get_kv_cache_usage(), 9),
            "blocks": block_sum([scheduler.kv_cache_manager.get_block_ids(r.request_id)[0] for r in scheduler.running]),
        }
        if step.num_scheduled_tokens:
            self._flying.append((step, self._runner.execute(scheduler, step, set(fresh))))
        self._abort("abort_in_step", number)
        if self._flying and (len(self._flying) == self._depth or not step.num_scheduled_tokens):
            entry["finished"] = self._take()
        return {key: value for key, value in entry.items() if value != []}

    def _take(self) -> list[int]:
        """Take in the oldest result; ids of those that ended."""
        step, result = self._flying.popleft()
        outputs = self._scheduler.update_from_output(step, result)
        if self._limits["num_speculative_tokens"] and not self._limits["async_scheduling"]:
            self._scheduler.update_draft_token_ids(self._runner.drafts(step))
        return [
            int(output.request_id)
            for client in outputs.values()
            for output in client.outputs
            if output.finish_reason is not None
        ]

    def _abort(self, key: str, number: int) -> None:
        from vllm.v1.request import RequestStatus

        for request in self._requests:
            if request.get(key) == number:
                # One by one: vLLM takes several at once in the order of a set, which changes from run to run.
                self._scheduler.finish_requests(name(request["id"]), RequestStatus.FINISHED_ABORTED)

    def _make(self, request: dict[str, Any]) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        return Request(
            request_id=name(request["id"]),
            prompt_token_ids=prompt_tokens(request["prompt"]),
            sampling_params=SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True),
            pooling_params=None,
            arrival_time=float(request["id"]),
            priority=request["priority"],
            block_hasher=self._hasher,
        )


def name(number: int) -> str:
    """An id as vLLM has it, a string; padded, so that strings sort as numbers do."""
    return f"{number:06d}"


def make_hasher(config: Any, limits: dict[str, Any]) -> Any:
    """The block hasher of vLLM's engine core; None where prefix caching is off."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    if not limits["enable_prefix_caching"]:
        return None
    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    return get_request_block_hasher(limits["block_size"], function)


def record(model: str, workload: Workload) -> dict[str, Any]:
    """The workload with vLLM's steps."""
    from vllm.version import __version__

    return {"vllm": __version__, **workload, "steps": Drive(model, workload).run()}


def main() -> None:
    model, source, target = sys.argv[1:]
    with open(source) as file:
        workloads = json.load(file)
    traces = {name: record(model, workload) for name, workload in workloads.items()}
    with open(target, "w") as file:
        json.dump(traces, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
