"""Ring collectives in closed form."""

import pytest

from cadenza.hardware import catalogue
from cadenza.hardware.link import Link

LINK = Link(name="x", title="x", bandwidth_bytes_per_s=10e9, latency_s=20e-6)


def test_all_reduce_of_two_ranks_moves_the_message_once_each_way() -> None:
    # 2 (n-1)/n = 1 for n = 2: 1 MB at 10 GB/s is 100 µs, after 20 µs.
    assert LINK.all_reduce_s(1e6, 2) == pytest.approx(120e-6)


def test_all_reduce_of_eight_moves_14_eighths() -> None:
    assert LINK.all_reduce_s(1e6, 8) == pytest.approx(20e-6 + 1.75 * 100e-6)


def test_all_gather_is_half_of_the_all_reduce() -> None:
    assert LINK.all_gather_s(1e6, 4) == pytest.approx(20e-6 + 0.75 * 100e-6)


def test_a_mesh_gives_two_ranks_one_link_and_eight_all() -> None:
    xgmi = catalogue.link("xgmi")
    assert [xgmi.bandwidth(n) / 1e9 for n in (2, 4, 8)] == [64, 192, 448]
    assert LINK.bandwidth(2) == LINK.bandwidth(8) == 10e9


def test_the_published_share_of_pcie_is_36_bare_messages() -> None:
    """36 messages of 4096 FP16 values over 24.7 GB/s are 11.9 µs: 0.015 % of the published 79.65 ms."""
    pcie = catalogue.link("pcie4-x16")
    wire_s = 36 * (pcie.all_reduce_s(4096 * 2, 2) - pcie.latency_s)
    assert wire_s == pytest.approx(11.94e-6, rel=1e-3)
    assert 100 * wire_s / 79.65e-3 == pytest.approx(0.015, abs=5e-4)


def test_latencies_are_as_derived() -> None:
    assert catalogue.link("pcie4-x16").latency_s == pytest.approx((15e-6 * 60e-6) ** 0.5)
    assert catalogue.link("pcie4-host-staged").latency_s == 124e-6
    assert catalogue.link("pcie4-x8").bandwidth_bytes_per_s == catalogue.link("pcie4-x16").bandwidth_bytes_per_s / 2
