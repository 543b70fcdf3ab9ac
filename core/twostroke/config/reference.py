"""The tables of `docs/configuration.md`, made from the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twostroke.config.document import KeyPath, show_path
from twostroke.config.json_schema import describe, plain_schema, resolve

BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"


def render_settings() -> str:
    """One Markdown table a section, one row a setting."""
    blocks = []
    for path, node in _sections(plain_schema(), ()):
        title = show_path(path).replace("[0]", "[]") or "The file"
        rows = [
            f"| `{name}` | {_cell(describe(child))} "
            f"| {'required' if name in node.get('required', ()) else _default(child)} "
            f"| {_cell(child.get('description', ''))} |"
            for name, child in node["properties"].items()
            if not _is_section(child)
        ]
        if rows:
            head = "| key | expects | default | meaning |\n|---|---|---|---|"
            about = node.get("description", "")
            blocks.append("\n".join([f"### `{title}`\n\n{about}\n\n{head}", *rows]))
    return "\n\n".join(blocks)


def insert_settings(document: str) -> str:
    """The document with the tables between its two markers made new."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render_settings()}\n\n{END}{after}"


def _sections(node: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    node = resolve(node)
    if "items" in node:
        yield from _sections(node["items"], (*path, 0))
    elif "properties" in node:
        yield path, node
        for name, child in node["properties"].items():
            yield from _sections(child, (*path, name))


def _is_section(node: dict[str, Any]) -> bool:
    node = resolve(node)
    return "properties" in node or "properties" in resolve(node.get("items", {}))


def _default(node: dict[str, Any]) -> str:
    value = node.get("default", {})  # what a factory makes is not in the schema: empty mappings
    if describe(node).startswith("a size") and isinstance(value, int):
        return f"`{value // 1024**2}MiB`"
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":  # run from the root of the repository after a change of the schema
    page = Path("docs/configuration.md")
    page.write_text(insert_settings(page.read_text(encoding="utf-8")), encoding="utf-8")
