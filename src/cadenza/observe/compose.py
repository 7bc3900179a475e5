"""compose.yml: Prometheus, Alertmanager and Grafana in containers, on the host's own loopback."""

from pathlib import Path

from cadenza.observe.settings import Settings

GRAFANA_PORT = 3000
IMAGES = {
    "prometheus": "docker.io/prom/prometheus:v3.5.0",
    "alertmanager": "docker.io/prom/alertmanager:v0.28.1",
    "grafana": "docker.io/grafana/grafana:12.1.1",
}


def compose(settings: Settings, folder: Path) -> dict[str, object]:
    """compose.yml as plain values. The bundle lies in the containers where it lies outside: its paths hold in both."""
    # A folder that was moved is told; the short form would make an empty one in its place.
    bundle = {
        "type": "bind",
        "source": str(folder),
        "target": str(folder),
        "read_only": True,
        "bind": {"create_host_path": False},
    }

    def service(name: str, **more: object) -> dict[str, object]:
        return {"image": IMAGES[name], "network_mode": "host", "restart": "unless-stopped", **more}

    return {
        "name": "cadenza-observe",
        "services": {
            "prometheus": service(
                "prometheus",
                command=[
                    f"--config.file={folder}/prometheus.yml",
                    "--storage.tsdb.path=/prometheus",
                    "--storage.tsdb.retention.time=30d",
                    f"--web.listen-address={settings.prometheus}",
                ],
                volumes=[bundle, "prometheus:/prometheus"],
            ),
            "alertmanager": service(
                "alertmanager",
                command=[
                    f"--config.file={folder}/alertmanager.yml",
                    "--storage.path=/alertmanager",
                    f"--web.listen-address={settings.alertmanager}",
                    "--cluster.listen-address=",
                ],
                volumes=[bundle, "alertmanager:/alertmanager"],
            ),
            "grafana": service(
                "grafana",
                environment={
                    "GF_SERVER_HTTP_ADDR": "127.0.0.1",
                    "GF_SERVER_HTTP_PORT": str(GRAFANA_PORT),
                    "GF_PATHS_PROVISIONING": f"{folder}/grafana/provisioning",
                    "GF_ANALYTICS_REPORTING_ENABLED": "false",
                    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
                    "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": f"{folder}/grafana/dashboards/cluster.json",
                },
                volumes=[bundle, "grafana:/var/lib/grafana"],
            ),
        },
        "volumes": {"prometheus": {}, "alertmanager": {}, "grafana": {}},
    }
