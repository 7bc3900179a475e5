"""Tables of requests and readings, by hand-made records and samples."""

import msgspec
import numpy as np
import pytest

from cadenza.analysis.tables import readings_table, requests_table
from cadenza.readings import Sample, Series
from cadenza.record import Outcome
from support.runs import record


def test_a_row_each_in_the_order_of_the_plan() -> None:
    dropped = msgspec.structs.replace(
        record(2), outcome=Outcome.DROPPED, sent_ns=None, event_ns=[], output_tokens=None, status=None
    )
    table = requests_table([dropped, record(1), record(0)])
    assert table["index"].tolist() == [0, 1, 2]
    assert table["outcome"].tolist() == ["ok", "ok", "dropped"]
    assert table["status"].tolist() == [200, 200, -1]
    # `support.runs`: 20 ms to the first of three tokens, 10 ms apart, a request every 40 ms.
    for name, expected in (("ttft_ms", 20), ("tpot_ms", 10), ("latency_ms", 40), ("dispatch_lag_ms", 0)):
        assert table[name][:2] == pytest.approx(expected)
        assert np.isnan(table[name][2])
    assert table["intended_ms"] == pytest.approx([0, 40, 80])
    assert table["output_tok"].tolist() == [3, 3, 0]
    assert len(requests_table([])["ttft_ms"]) == 0


def test_a_label_is_a_column_and_no_label_replaces_a_column_of_the_row() -> None:
    table = readings_table(
        [
            Sample(5, "host", None, (Series("load", ()), Series("disk_bytes", (("source", "sda"),))), [0.5, 7.0]),
            Sample(9, "amdgpu", None, (Series("gpu_power_watts", (("gpu", "0000:03:00.0"),)),), [250.0]),
        ]
    )
    assert table["at_ns"].tolist() == [5, 5, 9]
    assert table["source"].tolist() == ["host", "host", "amdgpu"]
    assert table["name"].tolist() == ["load", "disk_bytes", "gpu_power_watts"]
    assert table["gpu"].tolist() == ["", "", "0000:03:00.0"]
    assert table["value"].tolist() == [0.5, 7.0, 250.0]
    assert sorted(readings_table([])) == ["at_ns", "name", "source", "value"]
