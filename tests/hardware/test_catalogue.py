"""Names, near misses and users' own files."""

import pytest

from cadenza.errors import UsageError
from cadenza.hardware import catalogue

DEVICE = """
vram_bytes = 17179869184
bandwidth_bytes_per_s = 448e9
fp16_flop_per_s = 20e12
tdp_w = 200
target = "sm_75"
"""
MODEL = "layers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 128\nvocab = 1000\n"


def test_names() -> None:
    assert {"mi50-32gb", "mi50-16gb", "rx6900xt", "mi300x", "rx7900xtx", "h100"} <= set(catalogue.names("device"))
    assert {"pcie4-x16", "pcie4-x8", "pcie5-x16", "pcie4-host-staged", "xgmi", "nvlink4"} <= set(
        catalogue.names("link")
    )
    assert {"qwen3-8b", "qwen2.5-7b", "gemma-4-e2b", "mixtral-8x7b", "qwen3-30b-a3b"} <= set(catalogue.names("model"))
    for kind, find in (("device", catalogue.device), ("link", catalogue.link), ("model", catalogue.model)):
        assert [find(name).name for name in catalogue.names(kind)] == catalogue.names(kind)


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen/Qwen3-8B", "qwen/qwen3-8b", " Qwen3-8B "])
def test_a_model_by_our_name_or_the_hubs(name: str) -> None:
    assert catalogue.model(name).hf_name == "Qwen/Qwen3-8B"


def test_a_near_miss_is_helped() -> None:
    with pytest.raises(UsageError, match=r"'mi50' \(did you mean 'mi50-..gb'\?\); there are: a100, h100"):
        catalogue.device("mi50")
    with pytest.raises(UsageError, match=r"did you mean 'pcie4-x16'\?"):
        catalogue.link("pcie-4-x16")
    with pytest.raises(UsageError, match="no model is called 'zzz'; there are: gemma"):
        catalogue.model("zzz")


@pytest.mark.parametrize("name", ["", "../devices/h100", "a\x1b[31m\n"])
def test_what_is_no_name_gets_a_printable_sentence(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        catalogue.device(name)
    assert str(refused.value).isprintable()


def test_a_users_device_and_model() -> None:
    device = catalogue.parse_device(DEVICE, "my.toml")
    assert (device.name, device.title, device.link, device.bandwidth_efficiency) == (
        "my.toml",
        "my.toml",
        "pcie4-x16",
        0.75,
    )
    model = catalogue.parse_model('name = "tiny"\n' + MODEL)
    assert (model.name, model.hf_name) == ("tiny", "tiny")
    # Two layers of 2·64·64 + 2·64·32 attention, 3·64·128 feed-forward, 2·64 norms; a last norm, two tables.
    assert model.params == 2 * (8192 + 4096 + 24576 + 128) + 64 + 2 * 64_000
    link = catalogue.parse_link("bandwidth_bytes_per_s = 1e9\nlatency_s = 0", "wire")
    assert link.all_reduce_s(1e9, 2) == 1.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vram_bytes = ", "my.toml describes no device"),
        ("", "missing required field"),
        (DEVICE + "colour = 1", "unknown field `colour`"),
        (DEVICE.replace("448e9", '"fast"'), r"bandwidth_bytes_per_s"),
        (DEVICE.replace("448e9", "nan"), r"bandwidth_bytes_per_s"),
        (DEVICE.replace("17179869184", "0"), r"vram_bytes"),
    ],
)
def test_a_bad_device_says_what_and_where(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        catalogue.parse_device(text, "my.toml")
    assert "my.toml" in str(refused.value)


def test_a_bad_model_says_what() -> None:
    with pytest.raises(UsageError, match="describes no model: heads"):
        catalogue.parse_model(MODEL.replace("kv_heads = 2", "kv_heads = 3"))
