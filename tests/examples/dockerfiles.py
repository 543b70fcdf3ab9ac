"""As much of a Dockerfile as the tests read: instructions, stages, what is copied."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def arguments(self, instruction: str) -> list[str]:
        """What stands behind each of these instructions."""
        return [text for name, text in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        return self.arguments(instruction)[-1]

    def command(self, instruction: str) -> list[str]:
        """ENTRYPOINT or CMD in their form of a JSON list."""
        return json.loads(self.last(instruction))

    def copies(self) -> list[tuple[str | None, list[str], str]]:
        """The stage that is copied from, the sources and the target."""
        found = []
        for text in self.arguments("COPY"):
            origin = re.match(r"--from=(\S+) ", text)
            *sources, target = text[origin.end() if origin else 0 :].split()
            found.append((origin[1] if origin else None, sources, target))
        return found


@dataclass
class Dockerfile:
    stages: list[Stage]
    arguments: dict[str, str]  # ARG NAME=default, of all stages


def read(path: Path) -> Dockerfile:
    """Parses one; fails where a line is no instruction."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, text = line.partition(" ")
        assert re.fullmatch(r"[A-Z]+", name), line
        if name == "ARG":
            arguments.__setitem__(*text.split("=", 1))
        if name == "FROM":
            base, _, alias = text.partition(" AS ")
            stages.append(Stage(alias, base))
        elif stages:
            stages[-1].steps.append((name, text.strip()))
    return Dockerfile(stages, arguments)
