"""Device data against data sheets, and what a device file may not say."""

import msgspec
import pytest

from cadenza.hardware import catalogue
from cadenza.hardware.device import Device

GIB = 1 << 30
# Data sheets: GiB, GB/s, dense FP16 TFLOPS, W.
SHEETS = {
    "mi50-32gb": (32, 1024, 26.5, 300),
    "mi50-16gb": (16, 1024, 26.5, 300),
    "rx6900xt": (16, 512, 46.1, 300),
    "mi300x": (192, 5300, 1307.4, 750),
    "rx7900xtx": (24, 960, 122.8, 355),
    "h100": (80, 3350, 989.4, 700),
    "a100": (80, 2039, 312, 400),
    "l40s": (48, 864, 362.05, 350),
    "rtx4090": (24, 1008, 165.2, 450),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_device_is_as_its_data_sheet_says(name: str) -> None:
    device = catalogue.device(name)
    told = (
        device.vram_bytes / GIB,
        device.bandwidth_bytes_per_s / 1e9,
        device.fp16_flop_per_s / 1e12,
        device.tdp_w,
    )
    assert told == pytest.approx(SHEETS[name])


def test_each_device_of_the_catalogue_is_checked_and_its_links_exist() -> None:
    assert set(catalogue.names("device")) == SHEETS.keys()
    for name in SHEETS:
        device = catalogue.device(name)
        assert {device.link, device.bus} <= set(catalogue.names("link"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vram_bytes", 0),
        ("bandwidth_bytes_per_s", -1.0),
        ("bandwidth_bytes_per_s", float("nan")),
        ("fp16_flop_per_s", float("inf")),
        ("tdp_w", 0.0),
        ("bandwidth_efficiency", 1.01),
        ("compute_efficiency", 0.0),
        ("dispatch_s_per_layer", -1e-6),
    ],
)
def test_impossible_numbers_are_refused(field: str, value: float) -> None:
    fields = {**msgspec.to_builtins(catalogue.device("h100")), field: value}
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert(fields, Device)
