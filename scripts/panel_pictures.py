"""A Grafana dashboard in the classic model as a picture: its panels in their places, drawn with matplotlib."""

import io
import math
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

try:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
    from matplotlib.transforms import offset_copy
    from PIL import Image
except ImportError:
    sys.exit("cadenza: matplotlib is not installed: pip install -e '.[bench]'")

Json = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]

DPI = 100
WIDTH_IN, COLUMNS = 16.0, 24
LINE_IN, GAP_IN, HEAD_IN = 0.36, 0.04, 0.9
LEGEND_IN = 0.165
INK, PALE, RULE, PAGE = "#24292e", "#6a737d", "#d8dbe0", "#f4f5f7"
COLOURS = {"green": "#3f9142", "orange": "#e8820c", "red": "#d62f3a", "blue": "#3274d9", "purple": "#8f3bb8"}
LINES = ("#5b9f4a", "#e0a400", "#33a2c4", "#ef7d3a", "#d0403a", "#1f60c4", "#a2409a", "#6b589c", "#33691e", "#b8860b")
BLUES = LinearSegmentedColormap.from_list("blues", ["#e3eefb", "#08306b"])
# Grafana's units: suffix, and the step from one prefix to the next.
_UNITS = {
    "short": ("", 1000),
    "reqps": (" req/s", 1000),
    "watt": ("W", 1000),
    "joule": ("J", 1000),
    "hertz": ("Hz", 1000),
    "Bps": ("B/s", 1000),
    "bytes": ("B", 1024),
    "celsius": (" °C", 0),
    "rotrpm": (" rpm", 0),
}
_PREFIXES = {1000: ("", "k", "M", "G", "T"), 1024: ("", "Ki", "Mi", "Gi", "Ti")}


class Answers(Protocol):
    """What a dashboard's queries return between two moments: Prometheus's results of a range and of an instant."""

    start_s: float
    end_s: float

    def fill(self, text: str) -> str: ...
    def over_time(self, expression: str) -> list[Json]: ...
    def at_the_end(self, expression: str) -> list[Json]: ...


def say(value: float, unit: str) -> str:
    """A value with its unit as Grafana writes it: three digits, and a prefix."""
    if not math.isfinite(value):
        return "+Inf" if value > 0 else "NaN"
    if unit in ("none", "dateTimeAsIso"):
        return f"{value:.0f}" if unit == "none" else f"{datetime.fromtimestamp(value // 1000, UTC):%F %T}"
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    if unit == "s":
        scale, suffix = next(
            ((k, s) for k, s in ((1, " s"), (1e-3, " ms"), (1e-6, " µs")) if abs(value) >= k), (1, " s")
        )
        return _digits(value / scale) + suffix
    suffix, step = _UNITS[unit]
    power = 0
    while step and abs(value) >= step and power < 4:
        value, power = value / step, power + 1
    prefix = _PREFIXES[step][power] if step else ""
    return f"{_digits(value)}{' ' if (prefix or suffix) and suffix[:1] != ' ' else ''}{prefix}{suffix}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Line:
    """One series on the grid of seconds, NaN where it has no point."""

    def __init__(self, found: Json, legend: str, answers: Answers) -> None:
        self.labels: dict[str, str] = found["metric"]
        self.name = re.sub(r"{{(\w+)}}", lambda label: self.labels.get(label[1], ""), answers.fill(legend)).strip()
        self.values: Floats = np.full(round(answers.end_s - answers.start_s) + 1, np.nan)
        for at_s, value in found["values"]:
            self.values[round(at_s - answers.start_s)] = float(value)

    @property
    def known(self) -> Floats:
        return self.values[np.isfinite(self.values)]


class Sheet:
    """One dashboard's picture while it is drawn."""

    def __init__(self, dashboard: Json, answers: Answers, note: str) -> None:
        self.answers, self.empty = answers, [""][:0]
        self.panels = list(lay_out(dashboard, answers))
        lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in self.panels)
        self.height_in = HEAD_IN + lines * LINE_IN + GAP_IN
        self.figure: Figure = plt.figure(figsize=(WIDTH_IN, self.height_in), dpi=DPI, facecolor=PAGE)
        self.notes = [
            (note["iconColor"], marked(answers.over_time(note["expr"]), answers))
            for note in dashboard["annotations"]["list"]
        ]
        self.text(0.12, 0.14, dashboard["title"], size=15, weight="bold")
        self.text(0.12, 0.6, dashboard["description"], size=9.5, color=PALE)
        label, _, how = note.partition("\n")
        self.text(WIDTH_IN - 0.12, 0.12, label, size=10, color=COLOURS["red"], ha="right", weight="bold")
        self.text(WIDTH_IN - 0.12, 0.35, how, size=9, color=PALE, ha="right")

    def text(self, x_in: float, y_in: float, text: str, *, size: float = 9, color: str = INK, **more: Any) -> None:
        """Inches from the upper left corner; the text hangs below it."""
        where = (x_in / WIDTH_IN, 1 - y_in / self.height_in)
        self.figure.text(*where, text, fontsize=size, color=color, **({"va": "top"} | more))

    def box(self, x_in: float, y_in: float, width_in: float, height_in: float, **more: Any) -> None:
        self.figure.add_artist(
            Rectangle(
                (x_in / WIDTH_IN, 1 - (y_in + height_in) / self.height_in),
                width_in / WIDTH_IN,
                height_in / self.height_in,
                transform=self.figure.transFigure,
                **more,
            )
        )

    def axes(self, x_in: float, y_in: float, width_in: float, height_in: float) -> Axes:
        bottom = 1 - (y_in + height_in) / self.height_in
        return self.figure.add_axes((x_in / WIDTH_IN, bottom, width_in / WIDTH_IN, height_in / self.height_in))


def lay_out(dashboard: Json, answers: Answers) -> list[Json]:
    """The panels in their places; a row that repeats, once for each card."""
    placed: list[Json] = []
    down, rows = 0, dashboard["panels"]
    while rows:
        count = next((i for i, panel in enumerate(rows[1:], 1) if panel["type"] == "row"), len(rows))
        section, rows = rows[:count], rows[count:]
        top = section[0]["gridPos"]["y"]
        height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in section) - top
        values = [""]
        if name := section[0].get("repeat"):
            definition = next(v["definition"] for v in dashboard["templating"]["list"] if v["name"] == name)
            series, label = definition.removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            values = sorted({one["metric"][label] for one in answers.over_time(series)})
        for number, value in enumerate(values):
            if number:
                down += height
            for panel in section:
                text = {"title": panel["title"], "targets": panel.get("targets", [])}
                if value:
                    text["title"] = text["title"].replace(f"${name}", value)
                    text["targets"] = [t | {"expr": t["expr"].replace(f"${name}", value)} for t in text["targets"]]
                place = panel["gridPos"] | {"y": panel["gridPos"]["y"] + down}
                placed.append(panel | text | {"gridPos": place})
    return placed


def marked(found: list[Json], answers: Answers) -> list[tuple[float, float]]:
    """From when to when any of the series is above 0, in seconds since the start."""
    on = np.zeros(round(answers.end_s - answers.start_s) + 3, dtype=bool)
    for one in found:
        for at_s, value in one["values"]:
            on[round(at_s - answers.start_s) + 1] |= float(value) > 0
    edges = np.flatnonzero(np.diff(on.astype(int)))
    return [(float(begin), float(end - 1)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def draw(dashboard: Json, answers: Answers, note: str, path: Path) -> list[str]:
    """Write the picture; returns the titles of panels that have no data."""
    sheet = Sheet(dashboard, answers, note)
    kinds = {"stat": draw_stat, "table": draw_table, "heatmap": draw_heatmap, "state-timeline": draw_states}
    for panel in sheet.panels:
        grid = panel["gridPos"]
        column_in = WIDTH_IN / COLUMNS
        x, y = grid["x"] * column_in + GAP_IN, HEAD_IN + grid["y"] * LINE_IN + GAP_IN
        width, height = grid["w"] * column_in - 2 * GAP_IN, grid["h"] * LINE_IN - 2 * GAP_IN
        if panel["type"] == "row":
            sheet.text(x + 0.06, y + 0.06, f"▾ {panel['title']}", size=10.5, weight="bold")
            continue
        sheet.box(x, y, width, height, facecolor="white", edgecolor=RULE, linewidth=0.8, zorder=-1)
        sheet.text(x + 0.1, y + 0.08, answers.fill(panel["title"]), size=9.5, weight="bold")
        if not kinds.get(panel["type"], draw_lines)(sheet, panel, (x, y + 0.3, width, height - 0.3)):
            sheet.empty.append(panel["title"])
            empty = panel["fieldConfig"]["defaults"]["noValue"]
            middle = {"ha": "center", "va": "center"}
            sheet.text(x + width / 2, y + height / 2, empty, size=11, color=PALE, **middle)
    buffer = io.BytesIO()
    sheet.figure.savefig(buffer, format="png", dpi=DPI, facecolor=PAGE)
    plt.close(sheet.figure)
    # A third of the size with the 256 colours that are used most; those between them are the edges of letters.
    picture, palette = Image.open(buffer).convert("RGB"), Image.new("P", (1, 1))
    used: Any = sorted(picture.getcolors(1 << 24) or (), reverse=True)[:256]
    palette.putpalette([channel for _, colour in used for channel in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    return sheet.empty


Box = tuple[float, float, float, float]  # x, y, width, height in inches


def read_lines(sheet: Sheet, panel: Json) -> list[Line]:
    return [
        Line(found, target["legendFormat"], sheet.answers)
        for target in panel["targets"]
        for found in sheet.answers.over_time(target["expr"])
    ]


def colour_of(value: float, panel: Json) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return COLOURS[reached[-1]]


def draw_stat(sheet: Sheet, panel: Json, box: Box) -> bool:
    """The last value as a big number over its curve."""
    lines = [line for line in read_lines(sheet, panel) if line.known.size]
    if not lines:
        return False
    x, y, width, height = box
    values = lines[0].values
    colour = colour_of(lines[0].known[-1], panel)
    axes = sheet.axes(x + 0.02, y + height * 0.55, width - 0.04, height * 0.42)
    axes.fill_between(np.arange(values.size), 0, values, color=colour, alpha=0.15, linewidth=0)
    axes.plot(values, color=colour, linewidth=1)
    axes.set_xlim(0, values.size - 1)
    axes.set_ylim(0, max(1e-9, 1.1 * lines[0].known.max()))
    axes.axis("off")
    text = say(lines[0].known[-1], panel["fieldConfig"]["defaults"]["unit"])
    middle = {"ha": "center", "va": "center", "weight": "bold"}
    sheet.text(x + width / 2, y + height * 0.3, text, size=21, color=colour, **middle)
    return True


def draw_legend(sheet: Sheet, lines: list[tuple[str, str]], columns: list[list[str]], box: Box) -> float:
    """(colour, name) and columns of figures at the foot of the panel; returns the height it takes, in inches."""
    x, y, width, height = box
    room = int(0.5 * height / LEGEND_IN) - 1
    shown = len(lines) if len(lines) <= room else room - 1
    taken = (min(len(lines), room) + 1) * LEGEND_IN + 0.04
    top, right = y + height - taken, x + width - 0.1
    small: Any = {"size": 7.5}
    for number, heading in enumerate(("last", "max", "mean")):
        if columns:
            sheet.text(right - 0.55 * number, top, heading, color=PALE, ha="right", **small)
    for row, (colour, name) in enumerate(lines[:shown], 1):
        at = top + row * LEGEND_IN
        sheet.box(x + 0.12, at + 0.06, 0.14, 0.03, facecolor=colour, edgecolor="none")
        most = int((width - (2.05 if columns else 0.4)) / 0.06)
        sheet.text(x + 0.32, at, name if len(name) <= most else f"{name[: most - 1]}…", **small)
        for number, text in enumerate(reversed(columns[row - 1]) if columns else ()):
            sheet.text(right - 0.55 * number, at, text, ha="right", **small)
    if shown < len(lines):
        sheet.text(x + 0.32, top + (shown + 1) * LEGEND_IN, f"and {len(lines) - shown} more", color=PALE, **small)
    return taken


def dress(sheet: Sheet, axes: Axes) -> None:
    """Time below, load, alerts and events behind."""
    span_s = sheet.answers.end_s - sheet.answers.start_s
    axes.set_xlim(0, span_s)
    axes.xaxis.set_major_locator(MultipleLocator(30 if span_s > 90 else 15))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: f"{int(at_s) // 60}:{int(at_s) % 60:02d}"))
    axes.tick_params(labelsize=7.5, length=0, colors=PALE, pad=3)
    axes.tick_params(axis="x", pad=9)  # below the strips
    axes.grid(color="#ebedf0", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    for level, (colour, stretches) in enumerate(sheet.notes):
        for begin, end in stretches:
            if colour == "blue":
                axes.axvspan(begin, end, color=COLOURS[colour], alpha=0.07, linewidth=0)
            else:
                axes.axvline(begin, color=COLOURS[colour], linewidth=0.6, linestyle=(0, (3, 2)), alpha=0.7)
            below = offset_copy(axes.get_xaxis_transform(), sheet.figure, y=-2 - 2.5 * level, units="points")
            (strip,) = axes.plot([begin, max(end, begin + 1)], [0, 0], color=COLOURS[colour], linewidth=2)
            strip.set(transform=below, clip_on=False, solid_capstyle="butt")


def draw_lines(sheet: Sheet, panel: Json, box: Box) -> bool:
    lines = [line for line in read_lines(sheet, panel) if line.known.size]
    if not lines:
        return False
    x, y, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    unit, custom = defaults["unit"], defaults["custom"]
    colours = [LINES[i % len(LINES)] for i in range(len(lines))]
    figures = [[say(float(f), unit) for f in (line.known.mean(), line.known.max(), line.known[-1])] for line in lines]
    told = [(colour, line.name) for colour, line in zip(colours, lines, strict=True)]
    order = range(len(lines))
    if panel["options"]["legend"].get("sortBy") == "Last *":
        order = sorted(order, key=lambda i: -lines[i].known[-1])
    foot = draw_legend(sheet, [told[i] for i in order], [figures[i] for i in order], box)
    axes = sheet.axes(x + 0.68, y + 0.06, width - 0.82, height - foot - 0.38)
    dress(sheet, axes)
    base: Floats = np.zeros(lines[0].values.size)
    for line, colour in zip(lines, colours, strict=True):
        stacked = custom["stacking"]["mode"] == "normal"
        values = base + np.nan_to_num(line.values) if stacked else line.values
        axes.plot(values, color=colour, linewidth=1.2)
        axes.fill_between(np.arange(values.size), base, values, color=colour, alpha=custom["fillOpacity"] / 100, lw=0)
        base = values if stacked else base
    low, high = axes.get_ylim()
    low, high = defaults.get("min", low), 1.02 * defaults.get("max", high)
    for step in defaults["thresholds"]["steps"][1:] if custom["thresholdsStyle"]["mode"] == "line" else ():
        axes.axhline(step["value"], color=COLOURS[step["color"]], linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(low, high if high > low else low + 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if unit == "bytes":
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(max(high, 1) / 4))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: say(value, unit)))
    return True


def draw_states(sheet: Sheet, panel: Json, box: Box) -> bool:
    lines = [line for line in read_lines(sheet, panel) if line.known.size]
    if not lines:
        return False
    x, y, width, height = box
    axes = sheet.axes(x + 1.0, y + 0.06, width - 1.14, height - 0.42)
    dress(sheet, axes)
    axes.grid(visible=False)
    for row, line in enumerate(reversed(lines)):
        colours = [colour_of(value, panel) if math.isfinite(value) else "none" for value in line.values]
        axes.bar(np.arange(len(colours)), 0.7, 1.0, row - 0.35, color=colours, align="center", linewidth=0)
    axes.set_yticks(range(len(lines)), [line.name[:14] for line in reversed(lines)])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    return True


def draw_heatmap(sheet: Sheet, panel: Json, box: Box) -> bool:
    """Counts a bucket: the cumulative ones of PromQL, each less the one below."""
    lines = sorted(read_lines(sheet, panel), key=lambda line: float(line.labels["le"]))
    if not lines:
        return False
    counts = np.diff(np.nan_to_num(np.array([line.values for line in lines])), axis=0, prepend=0).clip(min=0)
    filled = np.flatnonzero(counts.max(axis=1) > 0)
    if not filled.size:
        return False
    rows = slice(max(filled[0] - 1, 0), filled[-1] + 2)
    shown, names = counts[rows], [line.labels["le"] for line in lines][rows]
    x, y, width, height = box
    axes = sheet.axes(x + 0.68, y + 0.06, width - 0.82, height - 0.42)
    dress(sheet, axes)
    axes.pcolormesh(np.ma.masked_equal(shown, 0), cmap=BLUES, zorder=3)
    # A bucket's upper bound stands at its upper edge.
    axes.set_yticks(
        range(1, len(names) + 1), [say(float(name), panel["fieldConfig"]["defaults"]["unit"]) for name in names]
    )
    axes.set_ylim(0, len(names))
    return True


def draw_table(sheet: Sheet, panel: Json, box: Box) -> bool:
    """One line for each set of labels: the labels by name, then the values."""
    names = {
        o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
        for o in panel["fieldConfig"]["overrides"]
    }
    hidden = {key for t in panel["transformations"] for key in t["options"].get("excludeByName", {})}
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    values = []
    for target in panel["targets"]:
        told = names["Value" if len(panel["targets"]) == 1 else f"Value #{target['refId']}"]
        values.append(told["displayName"])
        for found in sheet.answers.at_the_end(target["expr"]):
            labels = {key: text for key, text in found["metric"].items() if key not in hidden}
            row = rows.setdefault(tuple(sorted(labels.items())), labels)
            row[told["displayName"]] = say(float(found["value"][1]), told["unit"])
    if not rows:
        return False
    keys = sorted({key for row in rows.values() for key in row} - set(values)) + values
    cells = [keys, *([row.get(key, "") for key in keys] for row in rows.values())]
    x, y, width, height = box
    wide = [max(len(line[i]) for line in cells) + 2 for i in range(len(keys))]
    size = min(8.5, 8.5 * (width - 0.2) / (0.075 * sum(wide)))
    shown = int((height - 0.1) / 0.25)
    for number, line in enumerate(cells[:shown]):
        at = x + 0.1
        for text, letters in zip(line, wide, strict=True):
            sheet.text(at, y + 0.05 + 0.25 * number, text, size=size, color=COLOURS["blue"] if number == 0 else INK)
            at += letters * (width - 0.2) / sum(wide)
    if shown < len(cells):
        sheet.text(x + width - 0.1, y - 0.2, f"{len(cells) - shown} more below", size=8, color=PALE, ha="right")
    return True
