"""Write the dashboards and recording rules that `cadenza observe` ships; `--check` fails if a file is stale.

They repeat one query per engine and one layout per panel, so they are made from `observe_data`. The other files under
src/cadenza/observe/data (alerts, their tests, Alertmanager, Prometheus, compose, README) are edited as they are; of the
alerts `--check` requires that an expression over a series of vLLM's has the same one of the other engines.
"""

import json
import sys
from pathlib import Path

from observe_data import vocabulary as words
from observe_data.cards import gpu
from observe_data.cluster import cluster
from observe_data.engines import engine
from observe_data.recording import recording_rules
from observe_data.runs import runs

from cadenza.observe.shipped import read_yaml, rules_of
from cadenza.observe.yaml_text import render

DATA = Path(__file__).parents[1] / "src" / "cadenza" / "observe" / "data"
DASHBOARDS = {"cluster": cluster, "engine": engine, "gpu": gpu, "runs": runs}
ABOUT = """\
Made by `cadenza observe init`; a file that you change is left alone by the next one.
One vocabulary over vLLM, SGLang and llama.cpp and over all cards: the series that the dashboards draw."""

# How the alerts read each quantity: the beginning of its selector, and the series.
READ = (
    *(("last_over_time(", series) for series in (words.RUNNING, words.WAITING, words.KV_USAGE)),
    *(("rate(", series) for series in (words.GENERATED_TOKENS, words.PROMPT_TOKENS, words.PREEMPTIONS, words.TTFT)),
    ("changes(", words.PROGRESS),
)


def render_all() -> dict[Path, str]:
    """The text of each generated file."""
    files = {DATA / "rules" / "recording.yml": render(recording_rules(), ABOUT)}
    for name, make in DASHBOARDS.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False)
        files[DATA / "grafana" / "dashboards" / f"{name}.json"] = text + "\n"
    return files


def find_missing_engines() -> list[str]:
    """A sentence for each engine's series that an alert lacks, although it has vLLM's."""
    return [
        f"alerts.yml: {rule['alert']} has {start}{series.vllm}, but not {start}{name}"
        for rule in rules_of(read_yaml("rules/alerts.yml"))
        for start, series in READ
        for name in series
        if name and start + series.vllm in rule["expr"] and start + name not in rule["expr"]
    ]


def main() -> int:
    if "--check" not in sys.argv[1:]:
        for path, text in render_all().items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        path.name
        for path, text in render_all().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if stale:
        print(f"{', '.join(stale)} stale: run python scripts/generate_observe.py", file=sys.stderr)
    missing = find_missing_engines()
    for sentence in missing:
        print(sentence, file=sys.stderr)
    return int(bool(stale or missing))


if __name__ == "__main__":
    sys.exit(main())
