"""From a profile to a core: KV blocks from memory, and refusals where there is none."""

import msgspec
import pytest

from cadenza.engine.build import build_core
from cadenza.engine.core.sequence import Limits
from cadenza.engine.profile import Hardware, Model, Profile, load
from cadenza.errors import UsageError

QWEN3 = Model("Qwen/Qwen3-8B", "qwen3-8b")


def test_the_kv_cache_is_what_the_smaller_card_has_room_for() -> None:
    core = build_core(load("mi50-rx6900xt"))
    blocks = core.instances["Qwen/Qwen3-8B"].limits.num_gpu_blocks
    assert blocks is not None
    # 0.9 x 16 GiB less half of 15.26 GiB of weights and something to work with; 72 KiB a token on each rank.
    most = (0.9 * 16 - 15.26 / 2) * 2**30 / (16 * 72 * 1024)
    assert most * 0.7 < blocks < most


def test_weights_that_do_not_fit_are_refused_in_figures() -> None:
    alone = Profile("alone", "one card", (QWEN3,), Limits(), Hardware(("rx6900xt",)))
    with pytest.raises(UsageError, match=r"Qwen/Qwen3-8B does not fit: Radeon RX 6900 XT .* weights 15\.26 GiB"):
        build_core(alone, "physics")


def test_a_cache_too_small_for_one_sequence_is_refused() -> None:
    profile = msgspec.structs.replace(load("mi50-rx6900xt"), limits=Limits(num_gpu_blocks=100))
    with pytest.raises(UsageError, match="holds 1584 tokens, one sequence may need 8192"):
        build_core(profile)


def test_a_profile_of_devices_serves_what_fits_by_physics() -> None:
    served = [model.architecture for model in load("rx6900xt").models]
    assert "gemma-4-e2b" in served
    assert "qwen3-8b" not in served
    core = build_core(load("h100"))
    assert core.instances["meta-llama/Llama-3.1-8B-Instruct"].limits.max_num_seqs == 1024
