"""`serve`: the endpoint in the foreground, from the first socket to the last stream."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.backends.hookspecs import Progress
from twostroke.config.exposure import open_doors
from twostroke.config.schema import Config, ServerConfig
from twostroke.errors import ConfigError
from twostroke.model import Model
from twostroke.model.demand import demand_of
from twostroke.server.all_surfaces import all_surfaces
from twostroke.server.endpoint import Endpoint
from twostroke.server.loading import LoadModel
from twostroke.server.models import Models
from twostroke.server.reload import ConfigFile, Reload
from twostroke.server.residency import Residency
from twostroke.server.room import DemandOf
from twostroke.server.served import Settings
from twostroke.server.signals import StopSignals
from twostroke.server.surface import Surface

logger = logging.getLogger("twostroke.server")
_LOAD_STOP_TIMEOUT_S = 5.0
_KILLED = 128  # plus the signal's number: what a shell reports


def serve(
    config: Config,
    *,
    load: LoadModel | None = None,
    plugins: Plugins | None = None,
    file: ConfigFile | None = None,
) -> int:
    """Serves the models of `config` until Ctrl-C or SIGTERM; answers the exit code.

    It listens at once: while models load, `/health` says so with 503. When all are loaded that are
    wanted from the start, it prints one line, `twostroke: serving NAMES on URL`. The first signal
    lets running streams end (up to `server.shutdown_timeout_s`; new requests get 503) and the exit
    code is 0. A second one cuts them off; then, and after a signal before everything was loaded,
    the code is 128 plus the signal's number.

    `load` makes a model from its settings; the default is `Model.from_config`. `plugins` are what
    is installed, unless given. `file` is read again on SIGHUP, and when it changes where the
    configuration says so; None: never. Call it from the main thread.

    Raises:
        TwostrokeError: the address is taken, a model cannot be loaded at the start, or two plugins
            clash.
    """
    started: list[Residency] = []
    plugins = load_plugins(config.plugins.block) if plugins is None else plugins
    surfaces = all_surfaces(plugins.surfaces)
    load, demand = load or _loader(config, plugins), _demand_on(plugins)
    code = asyncio.run(_serve(config, load, demand, surfaces, file, started.append))
    if any(each.is_busy or each.models.have_hung_threads for each in started):
        # A session is being loaded or run by native code, which an ordinary exit would wait for
        # or tear down under its feet.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _loader(config: Config, plugins: Plugins) -> LoadModel:
    def load(settings: Settings, report: Callable[[Progress], None]) -> Model:
        return Model.from_config(
            settings.model,
            settings.scheduler,
            plugins=plugins,
            progress=report,
            measure_device=config.server.measure_device,
        )

    return load


def _demand_on(plugins: Plugins) -> DemandOf:
    return lambda settings: demand_of(settings.model, settings.scheduler, plugins)


async def _serve(
    config: Config,
    load: LoadModel,
    demand: DemandOf,
    surfaces: Sequence[Surface],
    file: ConfigFile | None,
    started: Callable[[Residency], None],
) -> int:
    check_doors(config.server)
    models = Models()
    models.serve(config)
    endpoint = Endpoint(models, config.server, surfaces)
    await endpoint.listen()
    residency = Residency(models, load, config.server.load_wait_s, demand)
    started(residency)
    reload = None if file is None else Reload(config, file, endpoint, models, residency)
    try:
        with StopSignals(None if reload is None else reload.ask) as signals:
            loading = ", ".join(models.loading()) or "no model yet"
            logger.info("listening on %s, loading %s", endpoint.url, loading)
            await _until_stopped(
                residency, reload, signals, lambda: _announce(models, endpoint.url)
            )
            logger.info("%s", _farewell(endpoint.num_running, endpoint.shutdown_timeout_s))
            await residency.stop(_LOAD_STOP_TIMEOUT_S)
            await endpoint.drain(signals.hurry)
            await residency.close()
            is_clean = models.is_ready and not signals.hurry.is_set()
            return 0 if is_clean else _KILLED + signals.number
    finally:
        await residency.close()
        await endpoint.close()


async def _until_stopped(
    residency: Residency,
    reload: Reload | None,
    signals: StopSignals,
    announce: Callable[[], None],
) -> None:
    """Waits for the models, announces them, waits for a signal; meanwhile models come and go.

    Raises:
        TwostrokeError: a model cannot be loaded at the start.
    """
    stop = asyncio.ensure_future(signals.stop.wait())
    start = asyncio.ensure_future(residency.start())
    either: list[asyncio.Future[Any]] = [stop, start]
    meanwhile = [asyncio.ensure_future(residency.keep_watch())]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            announce()
            if reload is not None:
                meanwhile.append(asyncio.ensure_future(reload.keep_up()))
            await stop
    finally:
        for task in (*either, *meanwhile):
            task.cancel()


def check_doors(server: ServerConfig) -> None:
    """Refuses to be open where other machines come in; logs a warning where the YAML insists.

    Raises:
        ConfigError: other machines reach the server without keys or without encryption.
    """
    doors = open_doors(server)
    if doors:
        raise ConfigError(doors)
    for what in server.insecure:
        others = tuple(each for each in server.insecure if each != what)
        if open_doors(server.model_copy(update={"insecure": others})):
            logger.warning(
                "server.insecure: [%s] lets other machines reach %s without %s",
                what,
                server.host,
                what,
            )


def _announce(models: Models, url: str) -> None:
    print(f"twostroke: serving {', '.join(models.names)} on {url}", flush=True)


def _farewell(num_running: int, timeout_s: float) -> str:
    if not num_running:
        return "stopping"
    requests = "1 request" if num_running == 1 else f"{num_running} requests"
    them = "it" if num_running == 1 else "them"
    return (
        f"stopping: waiting up to {timeout_s:g} s for {requests}; a second signal cuts {them} off"
    )
