"""`class/kfd/`: the topology that ROCm sees, and what the engine's process has on each card."""

from collections.abc import Mapping, Sequence

from cadenza.engine.board.card import CardModel
from cadenza.engine.board.state import CardIdentity, CardState, Member, Texts

PID = 4321  # of the engine, as the tree and the log tell it
_NODES = "class/kfd/kfd/topology/nodes"
_CPU_BYTES = 135007633408

# Lines of a KFD node in the driver's order; the last group stands in GPU nodes alone, before max_engine_clk_ccompute.
_KFD_LINES = (
    "cpu_cores_count",
    "simd_count",
    "mem_banks_count",
    "caches_count",
    "io_links_count",
    "p2p_links_count",
    "cpu_core_id_base",
    "simd_id_base",
    "max_waves_per_simd",
    "lds_size_in_kb",
    "gds_size_in_kb",
    "num_gws",
    "wave_front_size",
    "array_count",
    "simd_arrays_per_engine",
    "cu_per_simd_array",
    "simd_per_cu",
    "max_slots_scratch_cu",
    "gfx_target_version",
    "vendor_id",
    "device_id",
    "location_id",
    "domain",
    "drm_render_minor",
    "hive_id",
    "num_sdma_engines",
    "num_sdma_xgmi_engines",
    "num_sdma_queues_per_engine",
    "num_cp_queues",
)
_KFD_GPU_LINES = (
    "max_engine_clk_fcompute",
    "local_mem_size",
    "fw_version",
    "capability",
    "debug_prop",
    "sdma_fw_version",
    "unique_id",
    "num_xcc",
)


def kfd_texts(members: Sequence[Member]) -> Texts:
    """`class/kfd/`: node 0 is the CPU, then a node a card that is there; and what the engine's process has on each."""
    count = len(members)
    cpu = dict.fromkeys(_KFD_LINES, 0) | {"cpu_cores_count": 32, "mem_banks_count": 1, "io_links_count": count}
    memory = {"heap_type": 0, "size_in_bytes": _CPU_BYTES, "flags": 0, "width": 64, "mem_clk_max": 3200}
    texts = {
        "class/kfd/kfd/topology/system_properties": _lines({"platform_oem": 0, "platform_id": 0, "platform_rev": 0}),
        f"{_NODES}/0/gpu_id": b"0\n",
        f"{_NODES}/0/name": b"",
        f"{_NODES}/0/properties": _lines(cpu | {"max_engine_clk_ccompute": 3500}),
        f"{_NODES}/0/mem_banks/0/properties": _lines(memory),
    }
    for node, member in enumerate(members, 1):
        texts[f"{_NODES}/0/io_links/{node - 1}/properties"] = _link(0, node, "host")
        texts |= _node_texts(node, member, members)
        texts |= _process_texts(*member)
    return texts


def _node_texts(node: int, member: Member, members: Sequence[Member]) -> Texts:
    card, identity, _ = member
    kfd, folder = card.kfd, f"{_NODES}/{node}"
    peers = [other for other, (them, _, _) in enumerate(members, 1) if other != node and them.kfd.peers == kfd.peers]
    links = [_link(node, 0, "host")] + [_link(node, peer, "xgmi") for peer in peers if kfd.peers == "xgmi"]
    direct = [_link(node, peer, "pcie") for peer in peers if kfd.peers == "pcie"]
    known = {
        "mem_banks_count": 1,
        "caches_count": len(kfd.caches),
        "io_links_count": len(links),
        "p2p_links_count": len(direct),
        "location_id": identity.bus << 8,
        "drm_render_minor": identity.render_minor,
        "unique_id": identity.unique_id if "unique_id" in card.files.live else 0,
    }
    known |= kfd.properties
    properties = {name: known.get(name, 0) for name in (*_KFD_LINES, *_KFD_GPU_LINES)}
    bank = {
        "heap_type": kfd.heap_type,
        "size_in_bytes": card.vram_bytes,
        "flags": 0,
        "width": kfd.memory_width,
        "mem_clk_max": kfd.memory_mhz,
    }
    texts = {
        f"{folder}/gpu_id": f"{identity.gpu_id}\n".encode(),
        f"{folder}/name": f"{kfd.name}\n".encode(),
        f"{folder}/properties": _lines(properties | {"max_engine_clk_ccompute": 3500}),
        f"{folder}/mem_banks/0/properties": _lines(bank),
    }
    texts |= {f"{folder}/io_links/{at}/properties": text for at, text in enumerate(links)}
    texts |= {f"{folder}/p2p_links/{at}/properties": text for at, text in enumerate(direct)}
    for at, cache in enumerate(kfd.caches):
        sharing = ["1"] * cache.sharers + ["0"] * (cache.sibling_map_length - cache.sharers)
        texts[f"{folder}/caches/{at}/properties"] = _lines(
            {
                "processor_id_low": kfd.properties["simd_id_base"],
                "level": cache.level,
                "size": cache.size,
                "cache_line_size": 64,
                "cache_lines_per_tag": 1,
                "association": 16,
                "latency": 0,
                "type": 9,
                "sibling_map": ",".join(sharing),
            }
        )
    return texts


def _link(node: int, to: int, kind: str) -> bytes:
    slowest, fastest = (64000, 64000) if kind == "xgmi" else (312, 32768)
    return _lines(
        {
            "type": 11 if kind == "xgmi" else 2,
            "version_major": 0,
            "version_minor": 0,
            "node_from": node,
            "node_to": to,
            "weight": {"host": 20, "pcie": 40, "xgmi": 15}[kind],
            "min_latency": 0,
            "max_latency": 0,
            "min_bandwidth": slowest,
            "max_bandwidth": fastest,
            "recommended_transfer_size": 0,
            "flags": 1,
        }
    )


def _process_texts(card: CardModel, identity: CardIdentity, state: CardState) -> Texts:
    """`proc/PID` of the engine on this card; only gfx9 tells how many of its compute units are occupied."""
    folder = f"class/kfd/kfd/proc/{PID}"
    properties = card.kfd.properties
    texts = {
        f"{folder}/pasid": b"32769\n",
        f"{folder}/vram_{identity.gpu_id}": f"{state.vram_used_bytes}\n".encode(),
        f"{folder}/sdma_{identity.gpu_id}": b"0\n",
        f"{folder}/stats_{identity.gpu_id}/evicted_ms": b"0\n",
        f"{folder}/queues/{identity.place}/gpuid": f"{identity.gpu_id}\n".encode(),
        f"{folder}/queues/{identity.place}/size": b"4096\n",
        f"{folder}/queues/{identity.place}/type": b"0\n",
    }
    if properties["gfx_target_version"] < 100000:
        units = properties["simd_count"] // properties["simd_per_cu"]
        texts[f"{folder}/stats_{identity.gpu_id}/cu_occupancy"] = f"{round(units * state.busy)}\n".encode()
    return texts


def _lines(pairs: Mapping[str, object]) -> bytes:
    return "".join(f"{key} {value}\n" for key, value in pairs.items()).encode()
