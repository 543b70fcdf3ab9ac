"""Which client asks which surface, whole and streamed, and the table of what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

BOTH, WHOLE, STREAMED = ("whole", "streamed"), ("whole",), ("streamed",)

DOCUMENTED = "docs/clients.md"  # the example there

_OPENAI = {"chat": BOTH, "completions": BOTH, "responses": BOTH, "models": WHOLE}
_ANTHROPIC = {"messages": BOTH, "models": WHOLE}
_OLLAMA = {"ollama chat": BOTH, "ollama generate": BOTH, "ollama models": WHOLE}

# The surfaces that each client asks, and how.
CLIENTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "openai (Python)": _OPENAI,
    "openai (Node)": _OPENAI,
    "anthropic (Python)": _ANTHROPIC,
    "anthropic (Node)": _ANTHROPIC,
    "ollama (Python)": _OLLAMA,
    "ollama (Node)": _OLLAMA,
    "langchain-openai (Python)": {"chat": BOTH, "completions": BOTH, "responses": BOTH},
    "litellm (Python)": {
        "chat": BOTH,
        "completions": BOTH,
        "messages": BOTH,
        "ollama chat": BOTH,
    },
    "llm (Python)": {"chat": BOTH, "completions": STREAMED},
    "ai (Node)": {"chat": BOTH, "completions": BOTH},
    "lm-eval (Python)": {"completions": WHOLE},  # with the arguments that are documented
}
PROGRAMS = {
    "openai (Python)": "python/openai_client.py",
    "openai (Node)": "node/openai.mjs",
    "anthropic (Python)": "python/anthropic_client.py",
    "anthropic (Node)": "node/anthropic.mjs",
    "ollama (Python)": "python/ollama_client.py",
    "ollama (Node)": "node/ollama.mjs",
    "langchain-openai (Python)": "python/langchain_client.py",
    "litellm (Python)": "python/litellm_client.py",
    "llm (Python)": "python/llm_client.py",
    "ai (Node)": "node/ai.mjs",
    "lm-eval (Python)": "python/lm_eval_client.py",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One client on one surface in one way, e.g. `openai (Python)`, `chat`, `streamed`."""

    client: str
    surface: str
    way: str


def expected(clients: Iterable[str]) -> Iterator[Cell]:
    """All cells of these clients, in the order in which they are printed."""
    for client in clients:
        for surface, ways in CLIENTS[client].items():
            yield from (Cell(client, surface, way) for way in ways)
        if client != "lm-eval (Python)":
            yield Cell(client, DOCUMENTED, "whole")


def read_reports(client: str, said: str) -> dict[Cell, str | None]:
    """What a program reports, a JSON object a line: None where a cell is right, else its fault."""
    reports = {}
    for line in said.splitlines():
        if line.startswith('{"surface"'):  # clients may print lines of their own
            told = json.loads(line)
            reports[Cell(client, told["surface"], told["way"])] = told["fault"]
    return reports


def table(cells: Iterable[Cell], reports: Mapping[Cell, str | None]) -> tuple[list[str], bool]:
    """The lines of the matrix with the faults behind it, and whether every cell is right.

    A cell that nobody reported is wrong too: its program ended before it, or does not have it.
    """
    cells = list(cells)
    lines = [f"{'client':25}  {'surface':17}  {'whole':8}  streamed"]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell in cells:
        word = "missing" if cell not in reports else "wrong" if reports[cell] else "right"
        rows.setdefault((cell.client, cell.surface), {})[cell.way] = word
    for (client, surface), ways in rows.items():
        whole, streamed = ways.get("whole", "-"), ways.get("streamed", "-")
        lines.append(f"{client:25}  {surface:17}  {whole:8}  {streamed}")
    for cell in cells:
        if fault := reports.get(cell):
            lines += ["", f"{cell.client}, {cell.surface}, {cell.way}:", fault.strip()]
    num_right = sum(cell in reports and reports[cell] is None for cell in cells)
    lines.append(f"clients: {num_right} of {len(cells)}")
    return lines, num_right == len(cells)
