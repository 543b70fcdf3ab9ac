"""Whether the models of a process can share one pool of threads, and how large it is."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twostroke.backends.choose import meant_spec, probe
from twostroke.backends.discovery import Plugins
from twostroke.backends.ort.threads import share_threads
from twostroke.config.schema import ModelConfig
from twostroke.errors import BackendError, InstallError
from twostroke.model.opening import wanted_backend
from twostroke.types import Stroke

log = logging.getLogger(__name__)


def share_threads_of(models: Iterable[ModelConfig], plugins: Plugins) -> int | None:
    """Gives this process one pool of threads where that serves its models; answers its size.

    For whoever owns the process, before the first model is opened. None changes nothing: then each
    session has threads of its own. That is so for a single model, whose sessions take turns, and
    where models want something that a pool cannot give each of them; the log says what.
    """
    wanted = _wanted_threads(models, plugins)
    if len(wanted) < 2:
        return None
    if len(set(wanted.values())) > 1:
        each = (f"{name} wants {num or 'only its own'}" for name, num in wanted.items())
        log.info("no shared threads: %s", ", ".join(each))
        return None
    num_threads = next(iter(wanted.values()))
    if num_threads is None:
        return None
    try:
        share_threads(num_threads)
    except (BackendError, InstallError) as error:  # the models run all the same, as they would
        log.warning("no shared threads: %s", error)
        return None
    log.info("%d threads, shared by %s", num_threads, ", ".join(wanted))
    return num_threads


def _wanted_threads(models: Iterable[ModelConfig], plugins: Plugins) -> dict[str, int | None]:
    """By name, the models that can share threads, and how many each wants; None: only its own."""
    wanted: dict[str, int | None] = {}
    for model in models:
        for stroke in Stroke:
            backend = wanted_backend(model, stroke)
            spec = meant_spec(plugins, backend.name)
            if spec is None or not spec.shares_threads:
                continue
            devices = probe(spec).devices
            usual = int(devices[0].details.get("threads", 0)) if devices else 0
            asked = backend.options.get(spec.threads_option) if spec.threads_option else None
            num_threads = asked or usual or None
            if backend.options.get("spinning") is False:
                num_threads = None  # threads of a shared pool spin within a run
            if wanted.get(model.name, num_threads) != num_threads:
                num_threads = None
            wanted[model.name] = num_threads
    return wanted
