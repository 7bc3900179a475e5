"""Shared by the dashboards: variables for node, engine, model and card; annotations; queries over recorded series."""

from observe_data.grafana import Query, annotation, variable
from observe_data.recording import QUANTILES

WINDOW = "$__rate_interval"
ON_NODE = 'node=~"$node"'
OF_CARD = 'node=~"$node",gpu=~"$gpu"'
OF_MODEL = 'node=~"$node",instance=~"$instance",model_name=~"$model"'
MODEL = "{{model_name}} {{instance}}"
CARD = "{{node}} {{gpu}}"

NODES = variable("node", "Node", "label_values(up, node)")
INSTANCES = variable("instance", "Engine", 'label_values(up{job="engine",node=~"$node"}, instance)')
MODELS = variable(
    "model", "Model", 'label_values(model:engine_requests_running:sum{node=~"$node",instance=~"$instance"}, model_name)'
)
GPUS = variable("gpu", "Card", 'label_values(gpu:busy:ratio{node=~"$node"}, gpu)')

# Points of cadenza runs, from `cadenza exporter --runs`; `node` is the client's.
RUN_NOTE = annotation(
    "Runs",
    "max by (node, run, point, model, load) (cadenza_run_info)",
    "point {{point}}: {{model}}, {{load}}",
    "purple",
    title="{{run}}",
)
# Engine load from any client: while requests are in the engine.
LOAD_NOTE = annotation(
    "Load",
    'sum by (node, instance, model_name) (model:engine_requests_in_system:sum{node=~"$node"}) > 0',
    "{{model_name}} at {{instance}}",
    "blue",
)
# Its tags are the values of all labels.
ALERT_NOTE = annotation(
    "Alerts", 'ALERTS{alertstate="firing",severity=~"critical|warning"}', "{{severity}}", "red", title="{{alertname}}"
)
EVENT_NOTE = annotation(
    "Kernel events", "increase(cadenza_kernel_events_total[1m]) > 0", "{{event}} on {{node}}", "orange"
)


def gauge(record: str, where: str = OF_MODEL, legend: str = MODEL) -> Query:
    return Query(f"{record}{{{where}}}", legend)


def quantiles(name: str, legend: str = MODEL) -> tuple[Query, ...]:
    return tuple(
        gauge(f"model:engine_{name}_seconds:{short}_rate1m", legend=f"{short} {legend}") for _, short in QUANTILES
    )
