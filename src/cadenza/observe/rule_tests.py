"""rules/tests.yml: the situations of `cases` as `promtool test rules` reads them."""

import re
from itertools import groupby

from cadenza.observe.alerts import Alert, alerts
from cadenza.observe.cases import Case, Samples, cases
from cadenza.observe.recorded import RECORDED_CASES, Recorded
from cadenza.observe.rules import GROUPS

STEP = "10s"


def rule_tests(slo_ttft_p99_s: float) -> dict[str, object]:
    """The file as plain values; its texts are those that the alerts then show."""
    by_name = {alert.name: alert for alert in alerts(slo_ttft_p99_s)}
    tests = [_alert_test(by_name[case.alert], case) for case in cases(slo_ttft_p99_s)]
    return {
        "rule_files": ["recording.yml", "alerts.yml"],
        "evaluation_interval": STEP,
        "group_eval_order": list(GROUPS),
        "tests": tests + [_recorded_test(list(of)) for _, of in groupby(RECORDED_CASES, lambda case: case.samples)],
    }


def fill(template: str, labels: dict[str, str], value: str) -> str:
    """An alert's text as Prometheus fills it in; `value` is given as it is to look."""
    filled = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), template)
    return re.sub(r"\{\{ \$value[^}]*\}\}", lambda _: value, filled)


def _alert_test(alert: Alert, case: Case) -> dict[str, object]:
    expected = []
    if case.labels is not None:
        texts = {name: getattr(alert, name) for name in ("summary", "description", "runbook")}
        expected = [
            {
                "exp_labels": {**case.labels, "severity": alert.severity},
                "exp_annotations": {name: fill(text, case.labels, case.value) for name, text in texts.items()},
            }
        ]
    told = "fires" if expected else "is silent"
    rule = {"eval_time": case.at, "alertname": alert.name, "exp_alerts": expected}
    return _test(f"{alert.name} {told}: {case.why}", case.samples) | {"alert_rule_test": [rule]}


def _recorded_test(cases: list[Recorded]) -> dict[str, object]:
    """Of the same samples, at several times."""
    name = f"{cases[0].record}: {'; '.join(case.why for case in cases)}"
    return _test(name, cases[0].samples) | {"promql_expr_test": [_expected(case) for case in cases]}


def _expected(case: Recorded) -> dict[str, object]:
    labels = ", ".join(f'{name}="{value}"' for name, value in case.labels.items())
    # A function's result has no name.
    sample = {"labels": f"{'' if case.expr else case.record}{{{labels}}}", "value": case.value}
    samples = [] if case.value is None else [sample]
    return {"expr": case.expr or case.record, "eval_time": case.at, "exp_samples": samples}


def _test(name: str, samples: Samples) -> dict[str, object]:
    series = [{"series": name, "values": values} for name, values in samples.items()]
    return {"name": name, "interval": STEP, "input_series": series}
