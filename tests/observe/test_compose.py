"""compose.yml: pinned images, nothing but loopback, the bundle read only; and what the real docker compose says."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cadenza.observe.bundle import write
from cadenza.observe.settings import Settings
from cadenza.observe.shipped import read_yaml

SERVICES: dict[str, Any] = read_yaml("compose.yml")["services"]
INSTALL = "no docker compose 2 here: apt-get install docker-compose (Debian 13), or Docker's own docker-compose-plugin"


def find_compose() -> list[str]:
    """The command; the first docker-compose is another program, and no longer made."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            said = subprocess.run([*command, "version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0 and re.search(r"version v?[2-9]", said.stdout):
            return command
    pytest.skip(INSTALL)


def test_images_are_pinned_to_a_version() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(rf"docker\.io/(prom|grafana)/{name}:v?\d+\.\d+\.\d+", service["image"])


def test_services_share_the_host_s_network_and_publish_nothing() -> None:
    assert set(SERVICES) == {"prometheus", "alertmanager", "grafana"}
    for service in SERVICES.values():
        assert service["network_mode"] == "host"
        assert not {"ports", "privileged", "cap_add"} & service.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "with a blank", "a:b", 'it\'s #1, "ä"', "{{x}}"])
def test_docker_compose_reads_it_as_it_is_meant(tmp_path: Path, name: str) -> None:
    command = find_compose()
    folder = tmp_path / name
    write(Settings(prometheus="127.0.0.1:19090", alertmanager="[::1]:19093"), folder)
    done = subprocess.run(
        [*command, "-f", str(folder / "compose.yml"), "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    services = json.loads(done.stdout)["services"]
    assert set(services) == set(SERVICES)
    for service in services.values():
        bundle, data = service["volumes"]
        assert (bundle["type"], bundle["source"], bundle["target"]) == ("bind", str(folder), str(folder))
        assert bundle["read_only"] is True
        # A folder that was moved is told, and none is made in its place.
        assert not bundle["bind"].get("create_host_path")
        assert data["type"] == "volume"
        assert not service.get("ports")
    assert f"--config.file={folder}/prometheus.yml" in services["prometheus"]["command"]
    assert "--web.listen-address=127.0.0.1:19090" in services["prometheus"]["command"]
    assert "--web.listen-address=[::1]:19093" in services["alertmanager"]["command"]
    grafana = services["grafana"]["environment"]
    assert grafana["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert grafana["GF_PATHS_PROVISIONING"] == f"{folder}/grafana/provisioning"
