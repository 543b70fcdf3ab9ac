"""Everything between a model's section of the YAML and a model that answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import Progress
from twostroke.bundle import Bundle
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.model.dialects import exported_dialects
from twostroke.model.opening import OpenEngine, open_engine
from twostroke.model.precisions import check_precisions, export_options
from twostroke.model.status import placement_lines
from twostroke.source import open_resolved, resolve_source
from twostroke.text import ChatTemplate, Tokenizer
from twostroke.text.parsers import AnswerReader, choose_reader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The parts of a model. The engine runs; whoever holds this closes it."""

    bundle: Bundle
    tokenizer: Tokenizer
    template: ChatTemplate | None
    reader: AnswerReader | None
    opened: OpenEngine


def load(
    model: ModelConfig,
    scheduler: SchedulerConfig,
    plugins: Plugins,
    progress: Callable[[Progress], None] | None,
    *,
    measure_device: bool = False,
) -> Loaded:
    """Finds (or exports) the bundle, reads its text side, starts its engine, in this order.

    `measure_device` as for `open_engine`.

    Raises:
        TwostrokeError: from the stage that failed; nothing stays open.
    """
    root = resolve_source(
        model.source,
        precision=model.precision,
        context_tokens=model.context_tokens,
        dialects=exported_dialects(model, plugins),
        plugins=plugins,
        progress=progress,
        options=export_options(model),
    )
    bundle = open_resolved(root)
    if bundle.origin is not None:
        log.info(
            "%s: %s is %s (%s), served as it is",
            model.name,
            bundle.root,
            bundle.origin,
            bundle.manifest.precision,
        )
    check_precisions(bundle, model)
    tokenizer = Tokenizer.open(bundle)
    template = ChatTemplate.open(bundle, tokenizer)
    if template is None:
        log.warning(
            "%s has no chat template: it completes prompts and refuses messages", model.name
        )
    source = None if template is None else template.source
    takes_tools = template is not None and template.takes_tools
    reader = choose_reader(
        plugins.parsers, model.parser, source, tokenizer, takes_tools=takes_tools
    )
    opened = open_engine(bundle, model, scheduler, plugins, measure_device=measure_device)
    for line in placement_lines(opened):
        log.info("%s: %s", model.name, line)
    return Loaded(bundle, tokenizer, template, reader, opened)
