"""Names of cards by their PCI ids."""

import pytest

from cadenza.telemetry.cards.products import name_product


@pytest.mark.parametrize(
    ("device", "revision", "name", "gfx"),
    [
        ("0x66a1", "0x02", "AMD Instinct MI60 / MI50", "gfx906"),
        ("0x66a1", "0x06", "AMD Radeon Pro VII", "gfx906"),
        ("0x66af", "0xc1", "AMD Radeon VII", "gfx906"),
        ("0x73bf", "0xc0", "AMD Radeon RX 6900 XT", "gfx1030"),
        ("0x73bf", "0xc1", "AMD Radeon RX 6800 XT", "gfx1030"),
        ("0x73bf", "0xff", "", ""),  # three cards share the device: no guess
        ("0x73bf", "", "", ""),
        ("0x74a1", "", "AMD Instinct MI300X", "gfx942"),
        ("0x740f", "0x02", "AMD Instinct MI210", "gfx90a"),
        ("0x1234", "0x00", "", ""),
        ("", "", "", ""),
        ("nonsense", "0xc0", "", ""),
    ],
)
def test_products(device: str, revision: str, name: str, gfx: str) -> None:
    assert name_product(device, revision) == (name, gfx)
