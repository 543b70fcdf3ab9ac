"""The table of `docs/metrics.md`, made from what the page shows."""

from __future__ import annotations

from pathlib import Path

from twostroke.server.metrics.families import families
from twostroke.server.metrics.page import PREFIX

BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"


def render_metrics() -> str:
    """One row for each metric of a model."""
    rows = [
        f"| `{PREFIX}{family.name}` | {family.kind} | "
        f"{', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in families()
    ]
    return "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *rows])


def insert_metrics(document: str) -> str:
    """The document with the table between its two markers made new."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_metrics()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(__file__).parents[4] / "docs" / "metrics.md"
    path.write_text(insert_metrics(path.read_text(encoding="utf-8")), encoding="utf-8")
