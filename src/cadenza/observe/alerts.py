"""The alerts: what is wrong with an engine or its cards, when to say so, and what to do about it.

Ratios are guarded against no traffic; expressions over a card and an engine join on `node`, since their ports differ.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from cadenza.observe import vocabulary as words
from cadenza.observe.rules import CRITICAL, VRAM
from cadenza.observe.vocabulary import BY_MODEL, by_model, card, card_over, changes, lately, quantile, rate

Severity = Literal["critical", "warning", "info"]

DEFAULT_SLO_TTFT_P99_S = 2.0
# "Under load": below this many streams a healthy small server makes less than 50 tokens a second as well.
LOADED_STREAMS = 8
# Reasons of gpu_metrics and NVML that mean heat; the others are limits of power and current, normal under load.
HEAT = ".*(temp|therm|hot|heat|liquid).*"
# Kinds of kernel events (`telemetry.kernel.patterns`) after which requests are lost, and those that tell of trouble.
LOST = "ring_timeout|gpu_reset|reset_failed|queue_preemption|mes_hang|ras_uncorrectable|aer|off_the_bus|thermal"
TROUBLE = "vm_fault|kfd_allocation|smu|xid|throttled"


class Alert(NamedTuple):
    """`hold`: for how long `expr` must hold; `article`: its row in the published list of six, from 0."""

    name: str
    expr: str
    hold: str
    severity: Severity
    summary: str
    description: str
    runbook: str
    article: int | None = None


# One series an engine: of several behind one address (data parallel) one alone may hang.
BY_ENGINE = f"{BY_MODEL}, engine"
# The carved-out memory of a processor's own graphics is always full, and it serves nobody.
SMALLEST_CARD_BYTES = 4e9
# Whoever tells of cards. While one of them has no answer, a card that is not told of is not known to be gone.
_COLLECTORS = 'cadenza_collector_age_seconds{collector=~"amdgpu|rocm_smi|amd_smi|smi|nvml"}'

_RUNNING = by_model(lately(words.RUNNING))
_GENERATED = by_model(rate(words.GENERATED_TOKENS, "1m"))
_FAILED = 'rate(vllm:request_success_total{finished_reason="error"}[5m])'
_BY_HEAT, _NOT_BY_HEAT = f'reason=~"{HEAT}"', f'reason!~"{HEAT}"'
# A card at its limit goes to and fro over it.
_OFTEN = 0.2
_NOW, _MOST = 'state="current"', 'state="max"'
_MODEL = "{{ $labels.model_name }} at {{ $labels.instance }}"
_CARD = "{{ $labels.gpu }} of {{ $labels.node }}"
_SHARE = "{{ $value | humanizePercentage }}"

_ARTICLE = (
    Alert(
        "GpusSaturated",
        f"min by (node) (({card('busy_ratio')})\n"
        f"and on (node, gpu) ({card('memory_size_bytes', VRAM)}) > {SMALLEST_CARD_BYTES:g}) > 0.98",
        "5m",
        "info",
        "Every card of {{ $labels.node }} is saturated",
        f"The least busy card has been busy for {_SHARE} of the time or more for five minutes.",
        "No action while tokens are generated: the node is fully used. For lower latency send it fewer requests or add "
        "a node. Without tokens it is a hang: see GpuHung.",
        0,
    ),
    Alert(
        "GpuMemoryNearlyFull",
        f"({card('memory_used_bytes', VRAM)})\n"
        f"/ (({card('memory_size_bytes', VRAM)}) > {SMALLEST_CARD_BYTES:g}) > 0.95",
        "2m",
        "warning",
        f"The memory of {_CARD} is nearly full",
        f"{_SHARE} of the card's memory is in use. vLLM allocates gpu_memory_utilization of it at start (default 0.92).",
        "If gpu_memory_utilization is above 0.95, this is expected: raise the threshold. Otherwise check for another "
        "process on the card (amdgpu_process_memory_bytes, nvidia-smi) before an allocation fails.",
        1,
    ),
    Alert(
        "EngineBatchLarge",
        f"{_RUNNING} > 32",
        "1m",
        "info",
        f"Large batch in {_MODEL}",
        "{{ $value }} requests share each step, which raises the time between tokens of each.",
        "Check the time between tokens. If it is too long, lower max_num_seqs, limit the load at the gateway to the "
        "highest concurrency before the knee in `cadenza sweep`, or add a replica.",
        2,
    ),
    Alert(
        "EngineQueueLong",
        f"{by_model(lately(words.WAITING))} > 8",
        "1m",
        "warning",
        f"Long request queue at {_MODEL}",
        "{{ $value }} requests wait for admission, which raises their time to first token.",
        "If the KV cache is full, it limits the batch: shorten contexts or give it more memory. If not, max_num_seqs "
        "does: raise it as far as the time between tokens allows, or add a replica.",
        3,
    ),
    Alert(
        "EngineKvCacheNearlyFull",
        f"{by_model(lately(words.KV_USAGE), 'max')} > 0.92",
        "1m",
        "warning",
        f"The KV cache of {_MODEL} is nearly full",
        f"{_SHARE} of its blocks are in use; when none is free, requests are preempted and recomputed.",
        "Shorten max_model_len or answers, lower max_num_seqs, or give the cache more: gpu_memory_utilization up, "
        "kv_cache_dtype fp8, another card.",
        4,
    ),
    Alert(
        "EngineSlow",
        f"{_GENERATED} < 50\nand on ({BY_MODEL}) {_RUNNING} >= {LOADED_STREAMS}",
        "2m",
        "warning",
        f"{_MODEL} is slow under load",
        f'{{{{ $value | printf "%.1f" }}}} tokens/s with {LOADED_STREAMS} or more requests running.',
        "Check for a throttled card or a PCIe link with fewer lanes (one slow card slows its whole tensor-parallel "
        "group), for long prefills, and for preemptions. If this node is never faster, lower the threshold.",
        5,
    ),
)


def _first_token_late(slo_s: float) -> Alert:
    return Alert(
        "EngineFirstTokenLate",
        f"(\n{quantile(0.99, words.TTFT, '5m')}\n) > {slo_s:g}",
        "2m",
        "warning",
        f"Time to first token of {_MODEL} exceeds the SLO",
        'P99 of the time to first token is {{ $value | printf "%.2f" }} s, '
        f"SLO {slo_s:g} s. The figure is interpolated within the engine's histogram buckets.",
        "Check whether it is queueing (EngineQueueLong, queue time) or prefill (long prompts, fewer prefix-cache hits). "
        "For queueing add a replica or limit the load at the gateway; for prefill shorten prompts or chunk them.",
    )


_ENGINE = (
    Alert(
        "EngineDown",
        'up{job="engine"} == 0',
        "30s",
        "critical",
        "The engine at {{ $labels.instance }} is down",
        "Its /metrics page could not be scraped for 30 s.",
        "Check whether the process runs and the end of its log, then the kernel log of the node (GpuKernelEvents).",
    ),
    Alert(
        "EngineMetricsMissing",
        f'up{{job="engine"}} == 1 unless on (instance) ({lately(words.RUNNING)})',
        "1m",
        "warning",
        "The engine at {{ $labels.instance }} exports no engine metrics",
        "Its /metrics page answers, but has none of the series that these alerts evaluate.",
        "Start vLLM without --disable-log-stats, SGLang with --enable-metrics, llama-server with --metrics.",
    ),
    Alert(
        "EngineErrors",
        f"{by_model(_FAILED)}\n/ ({by_model('rate(vllm:request_success_total[5m])')} > 0) > 0.05",
        "1m",
        "warning",
        f"Requests fail at {_MODEL}",
        f"{_SHARE} of the requests that finished in the last 5 min finished in an error.",
        "The errors are in the engine's log. (vLLM counts failures in vllm:request_success_total, by finished_reason.)",
    ),
    Alert(
        "EngineKvCachePressure",
        f"{by_model(lately(words.KV_USAGE), 'max')} > 0.95\nand on ({BY_MODEL}) {by_model(lately(words.WAITING))} > 0",
        "1m",
        "warning",
        f"Requests wait for the KV cache of {_MODEL}",
        f"{_SHARE} of its blocks are in use and requests are queued.",
        "The cache, not the compute, limits this server. See EngineKvCacheNearlyFull for how to enlarge it.",
    ),
    Alert(
        "EnginePreemptionStorm",
        f"{by_model(rate(words.PREEMPTIONS, '1m'))} * 60 > 10",
        "1m",
        "warning",
        f"{_MODEL} preempts many requests",
        '{{ $value | printf "%.0f" }} preemptions in the last minute; each recomputes tokens.',
        "The admitted requests do not fit the KV cache to their end: lower max_num_seqs, or enlarge the cache.",
    ),
)


def _kernel(name: str, kinds: str, severity: Severity, runbook: str) -> Alert:
    events = f'cadenza_kernel_events_total{{event=~"{kinds}"}}'
    return Alert(
        name,
        # A counter that appears with its first event has not increased. It appeared where the page was read more often
        # than it was on it: else it was there before Prometheus looked, and is old.
        f"sum by (node, gpu, event) (increase({events}[10m])) > 0\n"
        f"or sum by (node, gpu, event) (\n  {events} > 0 unless {events} offset 10m\n"
        f"  and count_over_time({events}[10m])\n"
        '  < on (instance) group_left () sum_over_time(up{job="exporter"}[10m])\n)',
        "0s",
        severity,
        "The kernel of {{ $labels.node }} reports {{ $labels.event }}",
        "Within the last 10 min. Card: {{ $labels.gpu }} (empty if the log line names none).",
        runbook,
    )


_CARDS = (
    Alert(
        "GpuHung",
        f"sum by ({BY_ENGINE}) ({lately(words.RUNNING)}) > 0\n"
        f"and sum by ({BY_ENGINE}) ({rate(words.GENERATED_TOKENS, '1m')}) == 0\n"
        # A server of embeddings generates none, and a long prompt takes its time.
        f"unless sum by ({BY_ENGINE}) ({rate(words.PROMPT_TOKENS, '1m')}) > 0\n"
        f"unless max by ({BY_ENGINE}) ({changes(words.PROGRESS, '1m')}) > 0\n"
        f"and on (node) max by (node) ({card('busy_ratio')}) > 0.95",
        "2m",
        "critical",
        f"{_MODEL} hangs: a card is busy and no token is generated",
        "Requests running: {{ $value }}. A card of {{ $labels.node }} is fully busy, and for 3 min no token was "
        "generated, no prompt was processed and KV cache usage did not change: one rank waits for another that hangs "
        "or has died. Often the kernel log has no entry. Low power distinguishes spinning from work.",
        "Take the server out of the gateway, save its log and `dmesg`, restart the engine; if the card stays busy "
        "without a process, reset it or reboot the node. The default timeout of a collective is 10 min.",
    ),
    Alert(
        "GpuLost",
        f"({card('up')}) == 0\n"
        f"or (({card_over('last_over_time', 'up', '1h')})\n"
        f"  unless on (node, gpu) ({card('up')})\n"
        # Its own exporter: the node may have another one.
        '  and on (instance) up{job="exporter"} == 1\n'
        f"  unless on (instance) {_COLLECTORS} > 10\n"
        f"  unless on (instance) ({_COLLECTORS} unless cadenza_collector_duration_seconds))",
        "30s",
        "critical",
        f"The card {_CARD} is lost",
        "It was reported within the last hour and no longer is, while the exporter and its collectors work.",
        "Check the kernel log for `PCIe Bus Error … type=Inaccessible` and a failed recovery. Cut the power (a reboot is "
        "not enough); check seating, riser, cable and supply. If it was removed on purpose, this ends within the hour.",
    ),
    Alert(
        "GpuHot",
        f"({card('temperature_celsius')})\n> ignoring (limit) ({card('temperature_limit_celsius', CRITICAL)}) - 5",
        "2m",
        "warning",
        f"{_CARD} is within 5 °C of its limit",
        '{{ $labels.sensor }}: {{ $value | printf "%.1f" }} °C. At the limit the driver lowers the clock.',
        "Check fan, air flow, dust and room temperature. A passive card needs a duct. Lower the power cap meanwhile.",
    ),
    Alert(
        "GpuThrottledByHeat",
        f"max by (node, gpu, reason) ({card_over('avg_over_time', 'throttled', '1m', _BY_HEAT)}) > {_OFTEN}",
        "1m",
        "warning",
        f"{_CARD} is throttled by heat",
        "Reason: {{ $labels.reason }}, for more than 20 % of the last minute. In a tensor-parallel group every other "
        "card waits for it.",
        "As for GpuHot. Measurements taken meanwhile are those of a throttled node.",
    ),
    Alert(
        "GpuThrottled",
        f"max by (node, gpu, reason) ({card_over('avg_over_time', 'throttled', '1m', _NOT_BY_HEAT)}) > {_OFTEN}",
        "10m",
        "info",
        f"{_CARD} is throttled",
        "Reason: {{ $labels.reason }}, for more than 20 % of 10 min. A limit of power or current is normal under full "
        "load. (`any`: this chip does not report the reason.)",
        "No action, unless the power cap should be higher: compare amdgpu_power_watts with amdgpu_power_cap_watts.",
    ),
    Alert(
        "GpuLinkNarrow",
        f"({card('pcie_link_width_lanes', _NOW)})\n"
        f"< ignoring (state) ({card('pcie_link_width_lanes', _MOST)})\n"
        f"and on (node, gpu) ({card('busy_ratio')}) > 0.5",
        "10m",
        "warning",
        f"{_CARD} runs on fewer PCIe lanes than it has",
        "{{ $value }} lanes under load. Link speed drops at idle by design; width under load does not.",
        "Reseat the card; check the riser and the wiring of the slot (a second card may halve the lanes of the first).",
    ),
    _kernel(
        "GpuKernelEvents",
        LOST,
        "critical",
        "`dmesg` shows the lines and the process. Requests of that time are lost or wrong; the engine usually needs a "
        "restart. If it recurs: better cooling, lower power cap, older or newer driver, another card.",
    ),
    _kernel(
        "GpuKernelWarnings",
        TROUBLE,
        "warning",
        "`dmesg` shows the lines. vm_fault: access to an unmapped address, most often a bug in the engine; "
        "kfd_allocation: no memory for compute queues; throttled: too hot; smu, xid: see the driver's manual.",
    ),
    Alert(
        "GpuUncorrectableErrors",
        # Some drivers add about a million at once that never happened.
        'increase(amdgpu_ras_errors_total{severity="uncorrectable"}[15m]) > 0\n'
        'and increase(amdgpu_ras_errors_total{severity="uncorrectable"}[15m]) < 1e6',
        "0s",
        "critical",
        f"Uncorrectable errors in {{{{ $labels.block }}}} of {_CARD}",
        "Data on the card was corrupted within the last 15 min; responses may be wrong.",
        "Restart the engine. If it happens again, take the card out of service (amdgpu_bad_pages counts retired pages).",
    ),
)
_EXPORTER = (
    Alert(
        "ExporterDown",
        'up{job="exporter"} == 0',
        "30s",
        "warning",
        "The exporter at {{ $labels.instance }} is down",
        "There is no data about the cards and the kernel log of {{ $labels.node }}: that their alerts ended does not mean "
        "that they are healthy.",
        "Run `cadenza exporter` on that node; its log has the reason why it stopped.",
    ),
    Alert(
        "CollectorStuck",
        # With looks minutes apart an old one is no sign; one that is too old to show is.
        "cadenza_collector_age_seconds > 30 and cadenza_collector_success == 0",
        "30s",
        "warning",
        "{{ $labels.collector }} on {{ $labels.node }} is stuck",
        'Its values are {{ $value | printf "%.0f" }} s old: its source does not respond.',
        "A tool hangs, often after a card crashed: `ps` shows it in state D. The other collectors continue. Reboot the "
        "node if it persists.",
    ),
)


def alerts(slo_ttft_p99_s: float = DEFAULT_SLO_TTFT_P99_S) -> tuple[Alert, ...]:
    """Every alert, the published six first."""
    return (*_ARTICLE, _first_token_late(slo_ttft_p99_s), *_ENGINE, *_CARDS, *_EXPORTER)


def alert_rules(slo_ttft_p99_s: float) -> dict[str, object]:
    """rules/alerts.yml, as plain values."""
    groups: dict[str, Callable[[Alert], bool]] = {
        "cadenza-engine-alerts": lambda alert: alert.name.startswith("Engine"),
        "cadenza-card-alerts": lambda alert: alert.name.startswith("Gpu"),
        "cadenza-exporter-alerts": lambda alert: not alert.name.startswith(("Engine", "Gpu")),
    }
    every = alerts(slo_ttft_p99_s)
    return {
        "groups": [
            {"name": name, "rules": [_rule(alert) for alert in every if belongs(alert)]}
            for name, belongs in groups.items()
        ]
    }


def _rule(alert: Alert) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook": alert.runbook,
        },
    }
