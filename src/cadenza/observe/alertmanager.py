"""alertmanager.yml: who hears of which alert, how often, and which alert says all that another would."""

from cadenza.observe.alerts import Severity

# severity → how long to gather, and after how long to say it again
_PATIENCE: dict[Severity, tuple[str, str]] = {
    "critical": ("5s", "1h"),
    "warning": ("30s", "4h"),
    "info": ("5m", "24h"),
}


def alertmanager_config() -> dict[str, object]:
    """alertmanager.yml as plain values. Its receivers say nothing to anybody until somebody fills them in."""
    return {
        "route": {
            "receiver": "info",
            "group_by": ["alertname", "node"],
            "routes": [
                {
                    "matchers": [f'severity="{severity}"'],
                    "receiver": severity,
                    "group_wait": wait,
                    "group_interval": "1m",
                    "repeat_interval": repeat,
                }
                for severity, (wait, repeat) in _PATIENCE.items()
            ],
        },
        "receivers": [{"name": severity} for severity in _PATIENCE],
        "inhibit_rules": [
            # ExporterDown silences nothing: what is read off a card ends with the page, what the kernel said stands.
            _inhibit('alertname="EngineDown"', 'alertname=~"Engine.*",alertname!="EngineDown"', "node", "instance"),
            _inhibit('alertname="GpuLost"', 'alertname=~"Gpu.*",alertname!="GpuLost"', "node", "gpu"),
            _inhibit('alertname="GpuHung"', 'alertname="GpusSaturated"', "node"),
            _inhibit(
                'alertname="EngineKvCachePressure"', 'alertname="EngineKvCacheNearlyFull"', "instance", "model_name"
            ),
            _inhibit('alertname="GpuThrottledByHeat"', 'alertname="GpuHot"', "node", "gpu"),
        ],
    }


def _inhibit(source: str, target: str, *equal: str) -> dict[str, object]:
    return {"source_matchers": [source], "target_matchers": target.split(","), "equal": list(equal)}
