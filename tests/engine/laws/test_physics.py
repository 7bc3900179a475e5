"""The physics law is the hardware room's step, in nanoseconds, and has no prefill of its own."""

import pytest

from cadenza.engine.laws.physics import Physics
from cadenza.engine.laws.timing import TimingLaw
from cadenza.hardware.batch import Batch
from cadenza.hardware.catalogue import model
from cadenza.hardware.step import step_time
from cadenza.hardware.system import EAGER, IDEAL, system

QWEN3 = model("qwen3-8b")
BATCH = Batch(16, 16, 0, 16_000, 16_000)


def test_a_step_is_the_hardware_rooms() -> None:
    box = system("mi50-32gb,rx6900xt", host=EAGER)
    seconds = step_time(box, QWEN3, BATCH).total_s
    assert Physics(box, QWEN3).step_ns(BATCH, 0.1) == round(seconds * 1e9)
    assert Physics(box, QWEN3).step_ns(BATCH, 0.9) == round(seconds * 1e9)


def test_without_overheads_a_step_is_weights_and_kv_over_bandwidth() -> None:
    alone = Batch(1, 1, 0, 16_000, 16_000)
    # 15.14 GB of weights (all but the input embeddings) and 16,000 tokens of 147,456 bytes, at 0.75 of 1024 GB/s.
    expected = (8.191e9 - 151_936 * 4096) * 2 + 16_000 * 147_456
    law = Physics(system("mi50-32gb", host=IDEAL), QWEN3)
    assert law.step_ns(alone, 0.5) == pytest.approx(expected / (0.75 * 1024e9) * 1e9, rel=1e-3)


def test_prefill_is_part_of_the_steps_and_a_request_is_on_its_way_for_a_while() -> None:
    law: TimingLaw = Physics(system("mi50-32gb"), QWEN3)
    assert law.prefill_ns(500, 3, 0.5) is None
    assert law.request_ns() == 15_600_000
    assert Physics(system("mi50-32gb", host=IDEAL), QWEN3).request_ns() == 0
