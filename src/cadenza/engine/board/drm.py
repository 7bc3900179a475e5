"""`class/drm/` of a card: its amdgpu device folder with hwmon, its connectors and its render node."""

from collections.abc import Callable, Sequence

from cadenza.engine.board.card import CardModel
from cadenza.engine.board.metrics import encode, measure
from cadenza.engine.board.state import CardIdentity, CardState, Texts

_HWMON_FROM = 4
_GRAIN = 0.1  # °C; real sensors tell whole degrees, which would hide half of a tolerance of half a degree


def _celsius(value: float) -> str:
    return str(round(value / _GRAIN) * round(1000 * _GRAIN))


def _levels(levels: Sequence[int], now: float) -> str:
    """One line a level, a star at the one nearest to `now`."""
    nearest = min(range(len(levels)), key=lambda level: abs(levels[level] - now))
    return "\n".join(f"{at}: {mhz}Mhz{' *' if at == nearest else ''}" for at, mhz in enumerate(levels))


def _core_levels(card: CardModel, state: CardState) -> str:
    """Vega and Instinct have a table; Navi tells both ends of its range and between them the current clock."""
    levels, now = card.clock.levels_mhz, round(state.sclk_mhz)
    if len(levels) != 2:
        return _levels(levels, now)
    between = now if levels[0] < now < levels[1] else (levels[0] + levels[1]) // 2
    return _levels((levels[0], between, levels[1]), now)


def _bus_traffic(state: CardState) -> str:
    """Messages in the last second, received and sent, and their payload: the sample tree's count at full load."""
    return f"{round(1204113 * state.busy)} {round(988231 * state.busy)} 256"


_LIVE: dict[str, Callable[[CardModel, CardIdentity, CardState], str]] = {
    "gpu_busy_percent": lambda card, identity, now: str(round(100 * now.busy)),
    "mem_busy_percent": lambda card, identity, now: str(round(100 * now.memory_busy)),
    "mem_info_vram_total": lambda card, identity, now: str(card.vram_bytes),
    "mem_info_vram_used": lambda card, identity, now: str(now.vram_used_bytes),
    "mem_info_vis_vram_total": lambda card, identity, now: str(card.vram_bytes),
    "mem_info_vis_vram_used": lambda card, identity, now: str(now.vram_used_bytes),
    "pp_dpm_sclk": lambda card, identity, now: _core_levels(card, now),
    "pp_dpm_mclk": lambda card, identity, now: _levels(card.clock.memory_levels_mhz, now.mclk_mhz),
    "pp_dpm_pcie": lambda card, identity, now: (
        f"0: 2.5GT/s, x8 310Mhz{'' if now.at_work else ' *'}\n1: 16.0GT/s, x16 619Mhz{' *' if now.at_work else ''}"
    ),
    "current_link_speed": lambda card, identity, now: card.link.speed if now.at_work else card.link.idle_speed,
    "current_link_width": lambda card, identity, now: str(card.link.width),
    "pcie_bw": lambda card, identity, now: _bus_traffic(now),
    "uevent": lambda card, identity, now: (
        f"DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID=1002:{card.kfd.properties['device_id']:04X}\nPCI_SLOT_NAME={identity.slot}"
    ),
    "unique_id": lambda card, identity, now: f"{identity.unique_id:016x}",
    "serial_number": lambda card, identity, now: f"{identity.serial:012x}",
    "freq1_input": lambda card, identity, now: str(round(now.sclk_mhz) * 1_000_000),
    "freq2_input": lambda card, identity, now: str(now.mclk_mhz * 1_000_000),
    "in0_input": lambda card, identity, now: str(round(now.core_mv)),
    "power1_average": lambda card, identity, now: str(round(now.power_w) * 1_000_000),
    "power1_input": lambda card, identity, now: str(round(now.power_w) * 1_000_000),
    "power1_cap": lambda card, identity, now: str(round(card.power.cap_w * 1_000_000)),
    "fan1_input": lambda card, identity, now: str(round(now.fan_rpm)),
    "fan1_max": lambda card, identity, now: str(round(card.fan.max_rpm if card.fan else 0)),
    "pwm1": lambda card, identity, now: str(round(255 * now.pwm)),
    "temp1_input": lambda card, identity, now: _celsius(now.edge_c),
    "temp1_crit": lambda card, identity, now: _celsius(card.sensors["edge"].crit_c),
    "temp1_emergency": lambda card, identity, now: _celsius(card.sensors["edge"].shutdown_c),
    "temp2_input": lambda card, identity, now: _celsius(now.junction_c),
    "temp2_crit": lambda card, identity, now: _celsius(card.sensors["junction"].crit_c),
    "temp2_emergency": lambda card, identity, now: _celsius(card.sensors["junction"].shutdown_c),
    "temp3_input": lambda card, identity, now: _celsius(now.memory_c),
    "temp3_crit": lambda card, identity, now: _celsius(card.sensors["memory"].crit_c),
    "temp3_emergency": lambda card, identity, now: _celsius(card.sensors["memory"].shutdown_c),
}


def drm_texts(card: CardModel, identity: CardIdentity, state: CardState) -> Texts:
    """`class/drm/` of one card: its device folder, its connectors and its render node."""
    drm = f"class/drm/card{identity.place + 1}"
    device, hwmon = f"{drm}/device", f"{drm}/device/hwmon/hwmon{_HWMON_FROM + identity.place}"
    files = card.files
    texts = {f"{device}/{name}": f"{text}\n".encode() for name, text in files.fixed.items()}
    texts |= {f"{hwmon}/{name}": f"{text}\n".encode() for name, text in files.fixed_hwmon.items()}
    texts |= {f"{hwmon}/{name}": f"{_LIVE[name](card, identity, state)}\n".encode() for name in files.live_hwmon}
    for name in files.live:
        if name == "gpu_metrics":
            texts[f"{device}/{name}"] = encode(card.metrics.version, measure(card, state))
        else:
            texts[f"{device}/{name}"] = f"{_LIVE[name](card, identity, state)}\n".encode()
    texts |= {f"{drm}-{connector}/.keep": b"" for connector in files.connectors}
    texts[f"class/drm/renderD{identity.render_minor}/.keep"] = b""
    return texts
