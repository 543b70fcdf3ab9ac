"""Report cards of every backend that comes along, and of the example plugin: `make conformance`.

Each runs in a process of its own, so that one that crashes or hangs takes nobody along. The last
line is `conformance: N of M backends`, of which those count that find a device here. The exit code
is 0 where every one passes, or fails only in what `KNOWN_FAULTS` says and whose fault that is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twostroke.testing.kit import Card, Outcome, Result, Verdict, closing_line

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Target:
    """A backend, what `twostroke conformance` is told about it, where it is run and by what."""

    backend: str
    flags: tuple[str, ...] = ()
    folder: Path = ROOT
    python: tuple[str, ...] = (sys.executable,)


TARGETS = (
    Target("cpu"),
    Target("openvino", ("--options", "inference_precision=f32")),
    Target(
        "plugin_ep",
        (
            "--options",
            "package=onnxruntime_ep_openvino",
            "hardware=cpu",
            "provider_options={inference_precision: f32}",
        ),
    ),
    Target("cuda", ("--precision", "fp16")),
    Target("directml"),
    # Needs an onnxruntime of its own: TWOSTROKE_WEBGPU is the command that runs a Python with it.
    Target(
        "webgpu", python=tuple(os.environ.get("TWOSTROKE_WEBGPU", "").split()) or (sys.executable,)
    ),
    Target("echo", ("--options", "lazy=false")),  # with memory of its own
    Target("coolcpu", ("--plugin", "coolcpu"), ROOT / "examples" / "backend_plugin"),
)

KNOWN_FAULTS: Mapping[tuple[str, str], str] = {}
"""By backend and check: what is wrong, and who has to mend it."""


def card_of(target: Target) -> Card:
    """The card of one target; where its process gives none, one that says how it ended."""
    command = [*target.python, "-m", "twostroke", "conformance", target.backend, "--json"]
    try:
        done = subprocess.run(
            [*command, *target.flags],
            cwd=target.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        (told,) = json.loads(done.stdout)["cards"]
        return Card.from_json(told)
    except subprocess.TimeoutExpired:
        fault = f"not done after {LIMIT_S} seconds"
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        fault = f"exit code {done.returncode}: {last}"
    return Card(target.backend, "", {}, (Result("process", Outcome.FAILED, fault),))


def surprises(card: Card, known: Mapping[tuple[str, str], str]) -> list[str]:
    """What stands on the card and is not known, and what is known and does not stand on it."""
    if card.verdict is Verdict.ABSENT:
        return []
    expected = {check for backend, check in known if backend == card.backend}
    new = [f"{card.backend}: {check} fails" for check in card.failed if check not in expected]
    mended = [
        f"{card.backend}: {check} passes; take it out of the known faults"
        for check in sorted(expected - set(card.failed))
    ]
    return new + mended


def main(
    targets: tuple[Target, ...] = TARGETS, known: Mapping[tuple[str, str], str] = KNOWN_FAULTS
) -> int:
    """Prints the cards and the closing line; 0 where nothing surprises."""
    cards, told = [], []
    for target in targets:
        card = card_of(target)
        print(card.to_text())
        for check in card.failed:
            if (card.backend, check) in known:
                print(f"  {check}: known: {known[card.backend, check]}")
        print(flush=True)
        cards.append(card)
        told += surprises(card, known)
    for line in told:
        print(line)
    print(closing_line(cards))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
