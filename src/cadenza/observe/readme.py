"""The README of a bundle: how to run it, what is in it, what its alerts say."""

import shlex
from pathlib import Path

from cadenza.observe.alerts import LOADED_STREAMS, alerts
from cadenza.observe.compose import GRAFANA_PORT
from cadenza.observe.settings import Settings

_TEXT = """\
# Prometheus, alerts and dashboards for an engine and its cards

Made by `cadenza observe init`. Run it again at any time, with other flags or without: files that you changed are left
alone and named (`--force` overwrites them), all others are brought up to date.

    engines     {engines}
    exporters   {exporters}

## Run it

**Prometheus from a package** (Debian, Ubuntu: `apt install prometheus prometheus-alertmanager`; macOS: `brew install
prometheus alertmanager`). In the foreground, data in `{folder}/data`, on this machine alone:

    cadenza exporter                 on each machine with cards
    cadenza exporter --runs runs     where sweeps are started, in place of it if that machine has cards, too
    cadenza observe up {quoted}

Prometheus is then at http://{prometheus}, Alertmanager at http://{alertmanager}. Ctrl-C stops both. Debian's packages
start servers of their own at the usual ports: end them with `sudo systemctl disable --now prometheus
prometheus-alertmanager`, or take other ports with `--prometheus` and `--alertmanager` of init. Thirty days of scrapes
are kept, 0.1 to 0.2 GB a day for a thousand series.

**A Prometheus that runs already**: copy the jobs `engine` and `exporter` of `prometheus.yml` into its `scrape_configs`,
under these names and with their `relabel_configs` (alerts go by `job`, and over a card and an engine by `node`), and
both files of `rules/` except `tests.yml`.

**An engine or an exporter with a password, a token or a certificate of its own**: a job in `prometheus.yml` takes,
beside its `static_configs`,

    scheme: https
    basic_auth: {{username: prometheus, password_file: /etc/prometheus/password}}
    authorization: {{credentials_file: /etc/prometheus/token}}       # in place of basic_auth
    tls_config: {{ca_file: /etc/prometheus/ca.crt}}

The secrets stay in files of their own, which only Prometheus need read. From then on `init` leaves `prometheus.yml`
alone.

**Grafana from a package** (10 or newer, https://grafana.com/docs/grafana/latest/setup-grafana/installation/):

    cp {quoted}/grafana/provisioning/datasources/cadenza.yml /etc/grafana/provisioning/datasources/
    cp {quoted}/grafana/provisioning/dashboards/cadenza.yml /etc/grafana/provisioning/dashboards/

Grafana's user must be able to read `{folder}/grafana/dashboards`. Or import the four files by hand: Dashboards, New,
Import.

**All in containers** (Linux; the containers share the host's network and listen on loopback):

    docker compose -f {quoted}/compose.yml up

Grafana is then at http://127.0.0.1:{grafana_port}, user and password `admin` until you set another. The containers'
users must be able to read this folder.

## What is in it

| file | what it is |
|---|---|
| `prometheus.yml` | jobs `engine`, `exporter`, `prometheus`; a scrape a second |
| `rules/recording.yml` | one vocabulary over engines and cards; quantiles; joules per token |
| `rules/alerts.yml` | the alerts below |
| `rules/tests.yml` | each of them firing and silent: `promtool test rules rules/tests.yml` |
| `alertmanager.yml` | who hears of what; **its receivers are empty, fill them in** |
| `grafana/dashboards/*.json` | cluster, engine, cards (a row each), runs beside each other |
| `grafana/provisioning/` | the data source and where the dashboards lie |
| `compose.yml` | the three servers in containers |

`cadenza observe check {quoted}` checks all of it: with promtool and amtool where they are installed, and with a lint of
its own that knows which metric names exist. Run it after every change.

## Alerts

| alert | severity | for | what it says |
|---|---|---|---|
{alerts}

Warnings reach Alertmanager after their `for`; what to do stands in each one's annotation `runbook`. "Under load" in
EngineSlow is {streams} requests or more. The promise in EngineFirstTokenLate is `--slo-ttft-p99-s {slo:g}`.

## Runs

Purple regions in the dashboards are runs of cadenza, one a point, titled with the run's name, where `cadenza exporter
--runs DIR` tells of them; blue ones are load as the engine saw it, whoever sent it. The dashboard `runs` lists the runs
of a day, and draws a time range over the same length of time some while ago. What a client saw, and what a run is
worth, is in its own report: `cadenza show RUN`.
"""


def readme(settings: Settings, folder: Path) -> str:
    """The text, for a bundle in `folder`."""
    rows = "\n".join(
        f"| {alert.name} | {alert.severity} | {alert.hold} | {_plain(alert.summary)} |"
        for alert in alerts(settings.slo_ttft_p99_s)
    )
    return _TEXT.format(
        engines=" ".join(settings.engines),
        exporters=" ".join(settings.exporters),
        prometheus=settings.prometheus,
        alertmanager=settings.alertmanager,
        folder=folder,
        quoted=shlex.quote(str(folder)),
        grafana_port=GRAFANA_PORT,
        alerts=rows,
        streams=LOADED_STREAMS,
        slo=settings.slo_ttft_p99_s,
    )


def _plain(template: str) -> str:
    return template.replace("{{ $labels.", "<").replace(" }}", ">")
