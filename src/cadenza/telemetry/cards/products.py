"""Names of cards by PCI device and revision, for drivers that do not give one: cards that are used for serving."""

# (name, gfx), as in libdrm's amdgpu.ids; a device without a revision here is one whose revisions do not differ in name.
_PRODUCTS: dict[tuple[int, int | None], tuple[str, str]] = {
    (0x66A1, None): ("AMD Instinct MI60 / MI50", "gfx906"),
    (0x66A1, 0x06): ("AMD Radeon Pro VII", "gfx906"),
    (0x66AF, None): ("AMD Radeon VII", "gfx906"),
    (0x738C, None): ("AMD Instinct MI100", "gfx908"),
    (0x7408, None): ("AMD Instinct MI250X", "gfx90a"),
    (0x740C, None): ("AMD Instinct MI250X / MI250", "gfx90a"),
    (0x740F, None): ("AMD Instinct MI210", "gfx90a"),
    (0x73A5, 0xC0): ("AMD Radeon RX 6950 XT", "gfx1030"),
    (0x73AF, 0xC0): ("AMD Radeon RX 6900 XT", "gfx1030"),
    (0x73BF, 0xC0): ("AMD Radeon RX 6900 XT", "gfx1030"),
    (0x73BF, 0xC1): ("AMD Radeon RX 6800 XT", "gfx1030"),
    (0x73BF, 0xC3): ("AMD Radeon RX 6800", "gfx1030"),
    (0x744C, 0xC8): ("AMD Radeon RX 7900 XTX", "gfx1100"),
    (0x744C, 0xCC): ("AMD Radeon RX 7900 XT", "gfx1100"),
    (0x74A0, None): ("AMD Instinct MI300A", "gfx942"),
    (0x74A1, None): ("AMD Instinct MI300X", "gfx942"),
    (0x74A5, None): ("AMD Instinct MI325X", "gfx942"),
    (0x75A0, None): ("AMD Instinct MI350X", "gfx950"),
    (0x75A3, None): ("AMD Instinct MI355X", "gfx950"),
}


def name_product(device: str, revision: str) -> tuple[str, str]:
    """(name, gfx) for the texts of the files `device` and `revision` (0x73bf, 0xc0); empty where not known."""
    try:
        device_id = int(device, 16)
    except ValueError:
        return "", ""
    try:
        exact = _PRODUCTS.get((device_id, int(revision, 16)))
    except ValueError:
        exact = None
    return exact or _PRODUCTS.get((device_id, None), ("", ""))
