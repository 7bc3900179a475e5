"""Which power amd-smi shows, which it does not say: of the moment from MI300 on, before that an average."""

import json
from typing import Any

import pytest

from cadenza.telemetry.cards import amd_smi


def type_of_power(card: dict[str, Any]) -> str:
    (label,) = (
        dict(reading.labels)["type"]
        for reading in amd_smi.parse(json.dumps([card])).readings
        if reading.name == "gpu_power_watts" and reading.value == 100
    )
    return label


@pytest.mark.parametrize(
    ("gfx", "edge", "label"),
    [
        ("gfx942", {"value": 40, "unit": "C"}, "instant"),
        ("gfx950", "N/A", "instant"),
        ("gfx90a", "N/A", "average"),
        ("gfx1030", {"value": 40, "unit": "C"}, "average"),
        (None, "N/A", "instant"),
        (None, {"value": 40, "unit": "C"}, "average"),
    ],
)
def test_power_is_instant_from_mi300_on(gfx: str | None, edge: object, label: str) -> None:
    card = {"gpu": 0, "power": {"socket_power": {"value": 100, "unit": "W"}}, "temperature": {"edge": edge}}
    if gfx is not None:
        card["asic"] = {"target_graphics_version": gfx}
    assert type_of_power(card) == label


@pytest.mark.parametrize(("mib", "label"), [(65520, "average"), (131072, "instant"), ("N/A", "average")])
def test_the_rows_of_monitor_have_no_edge_and_go_by_the_memory(mib: object, label: str) -> None:
    """Each half of an MI250 has 64 GiB less some for the firmware; an MI300A has 128."""
    total = {"value": mib, "unit": "MB"}
    assert type_of_power({"gpu": 0, "power_usage": {"value": 100, "unit": "W"}, "vram_total": total}) == label
