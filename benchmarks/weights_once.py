"""Prints the memory of one session and of both over a bundle, with and without the shared weights.

    python benchmarks/weights_once.py bundles/smollm2-fp32 bundles/smollm2-int8 bundles/smollm2-int4

Each figure is the proportional set size (PSS, Linux) of a process that opened the sessions and ran
them, in MB: a page that two mappings share counts once. "once" uses the cache of prepacked weights
(`share_weights`, the default), "apart" lets each session pack its own. Set TWOSTROKE_CACHE to keep
the packed files out of the usual cache.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

NUM_TOKENS, CAPACITY_TOKENS, NUM_STEPS = 256, 512, 3
ROLLUP = Path("/proc/self/smaps_rollup")


def main() -> None:
    """Measures every bundle of the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path)
    bundles = parser.parse_args().bundles
    width = max(len(bundle.name) for bundle in bundles)
    print(f"{'PSS in MB':{width}}  one  both once  (of one)  both apart  (of one)")
    for bundle in bundles:
        pss_kib(bundle, "prefill", "decode")  # packs the weights where they are not packed yet
        one, once = pss_kib(bundle, "prefill"), pss_kib(bundle, "prefill", "decode")
        apart = pss_kib(bundle, "prefill", "decode", share_weights=False)
        print(
            f"{bundle.name:{width}} {one / 1000:4.0f} {once / 1000:10.0f} {once / one:9.2f} "
            f"{apart / 1000:11.0f} {apart / one:9.2f}"
        )


def pss_kib(bundle: Path, *strokes: str, **options: object) -> int:
    """The PSS in KiB of a process that opened a bundle's strokes and ran each of them."""
    command = [sys.executable, __file__, "--child", str(bundle), json.dumps(options), *strokes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout)


class Sessions:
    """The sessions of some strokes over one row of a cache."""

    def __init__(self, root: Path, strokes: list[str], options: dict[str, object]) -> None:
        from twostroke.backends import Device
        from twostroke.bundle import open_bundle
        from twostroke.types import Stroke
        from twostroke_backends.cpu import CpuBackend

        self.manifest = (bundle := open_bundle(root, check_hashes=False)).manifest
        self.backend = CpuBackend(Device(0, "", "cpu"), options)
        self.sessions = {
            name: self.backend.open_session(bundle.graph(Stroke(name)), Stroke(name))
            for name in strokes
        }
        self.cache: dict[str, Any] = {}

    def run(self, stroke: str, num_new: int, num_past: int) -> None:
        """Feeds tokens behind what the row holds, and looks whether numbers come out."""
        session = self.sessions[stroke]
        values = {
            "input_ids": np.full((1, num_new), 28, np.int64),
            "position_ids": np.arange(num_past, num_past + num_new)[None],
            "seqlens_k": np.array([num_past + num_new - 1], np.int32),
            "total_sequence_length": np.array(num_past + num_new, np.int32),
            "logit_index": np.array([[num_new - 1]]),
        }
        inputs = {}
        for name, spec in session.inputs.items():
            if name in values:
                inputs[name] = self.backend.allocate(values[name].shape, spec.dtype)
                inputs[name].write(values[name])
            else:
                inputs[name] = self._past(name, spec.dtype)
        vocab_size = self.manifest.architecture.vocab_size
        outputs = {
            name: inputs.get(name.replace("present", "past_key_values"))
            or self.backend.allocate((1, 1, vocab_size), spec.dtype)
            for name, spec in session.outputs.items()
        }
        session.bind(inputs, outputs).run()
        if not np.isfinite(outputs["logits"].read()).all():
            raise RuntimeError(f"the {stroke} graph gave no numbers")

    def _past(self, name: str, dtype: Any) -> Any:
        if name not in self.cache:
            layer = self.manifest.kv_layers[int(name.split(".")[1])]
            shape = (1, layer.num_kv_heads, CAPACITY_TOKENS, layer.head_dim)
            self.cache[name] = self.backend.allocate(shape, dtype)
        return self.cache[name]


def child(root: str, options: str, *strokes: str) -> None:
    """Opens, runs, and prints the PSS of this process in KiB."""
    sessions = Sessions(Path(root), list(strokes), json.loads(options))
    if "prefill" in strokes:
        sessions.run("prefill", NUM_TOKENS, 0)
    if "decode" in strokes:
        for step in range(NUM_STEPS):
            sessions.run("decode", 1, NUM_TOKENS + step)
    found = re.search(r"^Pss:\s*(\d+)", ROLLUP.read_text(), re.MULTILINE)
    print(found[1] if found else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
