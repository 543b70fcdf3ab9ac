"""Runs bundles over a text, one after another, and compares them with a source that was run first.

The runner is the server's own, without its scheduler. Without torch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from twostroke.backends.choose import Opened, open_backend
from twostroke.backends.discovery import Plugins
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import Evaluation, GraphFact
from twostroke.engine.build import open_runner
from twostroke.engine.runner import Runner
from twostroke.errors import BundleError
from twostroke.evaluation.figures import Figures, Logits, Score, measure
from twostroke.evaluation.timing import NUM_TIMED, chosen_graphs, median_ms, timed_steps
from twostroke.evaluation.windows import NUM_TOKENS, Text, Window, cut
from twostroke.evaluation.yardstick import Yardstick
from twostroke.source import open_resolved
from twostroke.text import Tokenizer
from twostroke.types import Stroke

Report = Callable[[str, float], None]  # what is being done, and how much of the whole is, 0 to 1

_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A bundle and what was found. `decode_ms` is one step of one sequence, here and now."""

    bundle: Bundle
    evaluation: Evaluation
    decode_ms: float | None

    @property
    def weights_bytes(self) -> int:
        """Bytes that the graphs' data files take; both graphs map the same pages."""
        files = self.bundle.manifest.files.items()
        return sum(fact.num_bytes for name, fact in files if _is_weights(name))


def evaluate_bundles(
    roots: Sequence[Path],
    text: Text,
    plugins: Plugins,
    *,
    source: Path | None = None,
    num_tokens: int = NUM_TOKENS,
    backend: str = "cpu",
    report: Report = lambda _stage, _fraction: None,
) -> list[Evaluated]:
    """Measures every bundle of `roots` on the first `num_tokens` tokens of `text`.

    `source` is the bundle to compare with. It is run once, and its logits wait in a temporary
    file: tokens * vocabulary * 4 bytes. A bundle among `roots` that is the source is not run twice.

    Raises:
        BundleError: a bundle is damaged, or its tokens are not the source's.
        RequestError: the text has nothing to predict.
        BackendError: the backend is unknown, absent, or cannot run a bundle.
    """
    bundles = [open_resolved(root) for root in roots]
    reference = None if source is None else open_resolved(source)
    others = [b for b in bundles if reference is None or b.root != reference.root]
    queue = others if reference is None else [reference, *others]
    windows = _shared_windows(queue, text, num_tokens)
    ran: dict[Path, tuple[Figures, float | None]] = {}
    with contextlib.ExitStack() as stack:
        opened = open_backend(plugins, backend)
        stack.callback(opened.backend.close)
        yardstick: Yardstick | None = None
        for number, bundle in enumerate(queue):
            said = _scaled(report, f"evaluate {bundle.root.name}", number, len(queue))
            if bundle is reference:
                yardstick = stack.enter_context(Yardstick(bundle.manifest.architecture.vocab_size))
                figures, decode_ms = _run(bundle, opened, windows, None, yardstick, said)
                ran[bundle.root] = replace(figures, mean_kl=0.0, top1_agreement=1.0), decode_ms
            else:
                ran[bundle.root] = _run(bundle, opened, windows, yardstick, None, said)
    compared = None
    if reference is not None:
        manifest, (figures, _) = reference.manifest, ran[reference.root]
        compared = f"{manifest.name} {manifest.precision}", figures.perplexity
    return [
        Evaluated(
            bundle, as_evaluation(text, figures, windows, opened.backend.name, compared), decode_ms
        )
        for bundle in bundles
        for figures, decode_ms in (ran[bundle.root],)
    ]


def scoring(runner: Runner, graphs: Mapping[Stroke, GraphFact], timings_ms: list[float]) -> Score:
    """How `runner`, which runs `graphs`, predicts the scored tokens of a window.

    The context is a prompt to the prefill graph. What follows goes through prefill too where it
    computes as the decode graph does, which is faster, else through decode, as answers are made.
    Then `timings_ms` gets the time of each step.
    """
    is_alike = graphs[Stroke.PREFILL].quantisation == graphs[Stroke.DECODE].quantisation

    def score(window: Window) -> Iterator[Logits]:
        ids, start = window.ids, window.num_context
        if is_alike and not runner.chunks_prompts:
            yield runner.score(0, 0, ids[:-1])[start - 1 :]
            return
        yield runner.prefill(0, 0, ids[:start], is_last=True)  # [1, vocab]
        for position in range(start, len(ids) - 1, _CHUNK_TOKENS if is_alike else 1):
            if is_alike:
                chunk = ids[position : min(position + _CHUNK_TOKENS, len(ids) - 1)]
                yield runner.score(0, position, chunk)
                continue
            begun_s = time.perf_counter()
            logits = runner.decode(0, ids[position : position + 1], [position])
            timings_ms.append((time.perf_counter() - begun_s) * 1000)
            yield logits

    return score


def _run(
    bundle: Bundle,
    opened: Opened,
    windows: Sequence[Window],
    source: Yardstick | None,
    keep: Yardstick | None,
    on_progress: Callable[[float], None],
) -> tuple[Figures, float | None]:
    """A bundle's figures and the time of a decode step."""
    longest = max(len(window.ids) for window in windows)
    context_tokens = min(longest + NUM_TIMED, bundle.manifest.context_tokens)
    graphs = chosen_graphs(bundle, opened)
    runner = open_runner(
        bundle,
        opened.backend,
        opened.backend,
        num_rows=1,
        context_tokens=context_tokens,
        dialects={stroke: graph.dialect for stroke, graph in graphs.items()},
    )
    timings_ms: list[float] = []
    try:
        score = scoring(runner, graphs, timings_ms)
        figures = measure(score, windows, source=source, keep=keep, on_progress=on_progress)
        if not timings_ms:
            *seen, last = windows[-1].ids  # all but the last are in the row
            timings_ms = timed_steps(runner, last, len(seen), context_tokens)
    finally:
        runner.close()
    return figures, median_ms(timings_ms)


def _shared_windows(queue: Sequence[Bundle], text: Text, num_tokens: int) -> list[Window]:
    """The windows of the text, which must be the same tokens to every bundle."""
    context_tokens = min(bundle.manifest.context_tokens for bundle in queue)
    made: list[list[Window]] = []
    for bundle in queue:
        tokenizer = Tokenizer.open(bundle)
        ids = tokenizer.encode(text.content, special=False, add_bos=False)
        bos_id = tokenizer.bos_id if tokenizer.adds_bos else None
        made.append(cut(ids, bos_id=bos_id, context_tokens=context_tokens, num_tokens=num_tokens))
        sizes = {made_of.manifest.architecture.vocab_size for made_of in (queue[0], bundle)}
        if made[-1] != made[0] or len(sizes) > 1:
            raise BundleError(
                f"{bundle.root} does not make the same tokens of {text.name} as {queue[0].root}, "
                f"so they cannot be compared; evaluate each alone, or name bundles of one model."
            )
    return made[0]


def as_evaluation(
    text: Text,
    figures: Figures,
    windows: Sequence[Window],
    backend: str,
    source: tuple[str, float] | None = None,
) -> Evaluation:
    """The figures as a manifest keeps them; `source` is what was compared, and its perplexity."""
    name, perplexity = source or (None, None)
    return Evaluation(
        text=text.name,
        text_sha256=text.sha256,
        num_tokens=figures.num_tokens,
        window_tokens=max(len(window.ids) for window in windows),
        backend=backend,
        perplexity=figures.perplexity,
        source=name,
        source_perplexity=perplexity,
        mean_kl=figures.mean_kl,
        top1_agreement=figures.top1_agreement,
    )


def _is_weights(name: str) -> bool:
    return not name.endswith((".json", ".jinja", ".txt", ".model", ".md"))


def _scaled(report: Report, stage: str, number: int, count: int) -> Callable[[float], None]:
    return lambda fraction: report(stage, (number + fraction) / count)
