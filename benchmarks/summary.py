"""Write the tables and the chart of docs/performance.md from benchmarks/results/summary.csv.

python -m benchmarks.summary
"""

import csv
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks" / "results" / "summary.csv"
PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "performance.svg"
BEGIN = "<!-- begin: {} (python -m benchmarks.summary) -->"
END = "<!-- end: {} -->"

WIDTH = 920
LABELS = 350
UNIT = 85
"""Pixels of the chart that stand for the time of our uncompiled step."""
BAR = 13
BARS = (("sd-scripts", "#b9bec9"), ("uncompiled", "#6b8fd6"), ("compiled", "#2f9e63"))

Row = dict[str, str]


def rows() -> list[Row]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(written: str) -> str:
    """Return the page with the tables of the data in place of the ones that it contains."""
    measured = rows()
    for family in dict.fromkeys(row["family"] for row in measured):
        written = _replace(written, family, _steps([row for row in measured if row["family"] == family]))
    return _replace(written, "sd-scripts", _comparison([row for row in measured if row["sd_scripts_ms"]]))


def _replace(written: str, name: str, table: list[str]) -> str:
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = written.partition(begin)
    return "\n".join([f"{before}{begin}", *table, f"{end}{rest.partition(end)[2]}"])


def _steps(measured: list[Row]) -> list[str]:
    head = ["training", "batch", "GPU", "eager ms", "compiled ms", "eager GiB", "compiled GiB", "TFLOP/s", "measured"]
    return _table(
        head,
        [
            [
                *(row[key] for key in ("training", "batch", "gpu", "eager_ms", "compiled_ms")),
                *(row[key] for key in ("eager_gib", "compiled_gib")),
                _tflops(row),
                f"[{row['source'][:10]}](../benchmarks/results/{row['source']}.md)",
            ]
            for row in measured
        ],
    )


def _tflops(row: Row) -> str:
    if not row["tflop"]:
        return ""
    fastest = min(float(row[key]) for key in ("eager_ms", "compiled_ms") if row[key])
    return f"{float(row['tflop']) * int(row['batch']) / fastest * 1000:.0f}"


def _comparison(measured: list[Row]) -> list[str]:
    return _table(
        ["uncompiled", "batch", "sd-scripts ms", "ours ms", "ours / sd-scripts", "sd-scripts GiB", "ours GiB"],
        [
            [
                f"{row['family']} {row['training']}",
                *(row[key] for key in ("batch", "sd_scripts_ms", "next_to_it_ms")),
                f"{float(row['next_to_it_ms']) / float(row['sd_scripts_ms']):.2f}",
                *(row[key] for key in ("sd_scripts_gib", "eager_gib")),
            ]
            for row in measured
        ],
    )


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def chart() -> str:
    """Return an SVG of the steps that were measured both uncompiled and in another way, uncompiled as the unit."""
    shown = [row for row in rows() if row["eager_ms"] and (row["compiled_ms"] or row["sd_scripts_ms"])]
    parts: list[str] = []
    top = 40
    for i, (title, colour) in enumerate(BARS):
        parts.append(_bar(LABELS + 150 * i, 12, BAR, colour))
        parts.append(_text(LABELS + 150 * i + 20, 23, title))
    for row in shown:
        bars = [(value, colour) for value, (_, colour) in zip(_relative(row), BARS, strict=True) if value]
        middle = top + len(bars) * (BAR + 3) / 2 + 3
        name = f"{row['family']} {row['training']}, batch {row['batch']}".replace("`", "")
        parts.append(_text(LABELS - 12, middle, name.replace("gradient_", ""), anchor="end"))
        for value, colour in bars:
            parts.append(_bar(LABELS, top, value * UNIT, colour))
            parts.append(_text(LABELS + value * UNIT + 6, top + BAR - 2, f"{value:.2f}"))
            top += BAR + 3
        top += 12
    style = "text{font:13px system-ui,sans-serif;fill:#333}rect.page{fill:#fff}"
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{style}</style>'
    return "\n".join([opening, f'<rect class="page" width="{WIDTH}" height="{top}"/>', *parts, "</svg>", ""])


def _relative(row: Row) -> tuple[float, float, float]:
    """Return the step times of sd-scripts, uncompiled and compiled, each relative to ours on the same kind of GPU."""
    compared = float(row["sd_scripts_ms"]) / float(row["next_to_it_ms"]) if row["sd_scripts_ms"] else 0.0
    compiled = float(row["compiled_ms"]) / float(row["eager_ms"]) if row["compiled_ms"] else 0.0
    return compared, 1.0, compiled


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BAR}" rx="2" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    CHART.write_text(chart(), encoding="utf-8", newline="\n")
