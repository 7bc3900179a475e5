"""From a profile to a running core: laws, limits and KV blocks put together."""

from collections.abc import Callable

import msgspec

from cadenza.engine.core.core import Core, Instance
from cadenza.engine.core.scheduler import Step
from cadenza.engine.core.sequence import Limits, Sequence
from cadenza.engine.profile import Model, Profile
from cadenza.engine.timing_laws import make_law
from cadenza.errors import UsageError
from cadenza.hardware.catalogue import model as architecture
from cadenza.hardware.memory import room


def build_core(
    profile: Profile,
    timing: str | None = None,
    seed: int = 0,
    output_token: Callable[[Sequence, int], int] = lambda sequence, n: n,
    trace: Callable[[Step], None] | None = None,
) -> Core:
    """An engine for each of the profile's models. UsageError: a law it has no data for, or weights that do not fit."""
    instances = {}
    for model in profile.models:
        law = make_law(profile, model, timing)
        instances[model.name] = Instance(model.name, law, _limits(profile, model), seed, output_token, trace)
    return Core(instances)


def _limits(profile: Profile, model: Model) -> Limits:
    """The profile's limits, with as many KV blocks as the memory of its hardware holds, where that is known."""
    limits = profile.limits
    if limits.num_gpu_blocks is not None or profile.system is None or model.architecture is None:
        return limits
    plan = room(
        profile.system.system(),
        architecture(model.architecture),
        limits.gpu_memory_utilization,
        limits.block_size,
        limits.max_num_batched_tokens,
        limits.max_num_seqs,
    )
    if not plan.fits:
        raise UsageError(f"{model.name} does not fit: {plan.reason}")
    return msgspec.structs.replace(limits, num_gpu_blocks=plan.blocks)
