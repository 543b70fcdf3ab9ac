"""`twostroke serve`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from twostroke.backends.hookspecs import Progress
    from twostroke.config import Config
    from twostroke.model import Model
    from twostroke.server.served import Settings

# How long a thread may run Python while others wait for the GIL. Event loop and engine need it
# often and for microseconds; Python's 5 ms is what a long chat would make each of them wait.
_SWITCH_INTERVAL_S = 0.001

ABOUT = """\
Loads the models of the YAML and answers over HTTP until Ctrl-C or SIGTERM, after which running
streams may finish. A model that is not exported yet is exported first, once. Changes of the YAML
are taken up while it serves, and on SIGHUP; docs/models.md says which."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "serve",
        run,
        summary="serve the models of the YAML over HTTP",
        about=ABOUT,
        examples=(
            "twostroke serve",
            "twostroke serve --config deploy.yaml",
            "twostroke serve --set server.port=0 --set models.0.precision=fp32",
        ),
    )
    options.add_config_flags(parser)
    options.add_log_flag(parser, "info")


def run(arguments: argparse.Namespace) -> int:
    """Serves in the foreground, showing how far exports are."""
    config = options.read_config(arguments)
    options.start_logging(arguments.log_level, timestamps=True)
    from twostroke.backends.discovery import load_plugins
    from twostroke.model import Model
    from twostroke.model.shared_threads import share_threads_of
    from twostroke.server.reload import ConfigFile
    from twostroke.server.run import serve

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    plugins = load_plugins(config.plugins.block)
    share_threads_of(config.models, plugins)

    def load(settings: Settings, report: Callable[[Progress], None]) -> Model:
        with ProgressDisplay(sys.stderr) as display:

            def show(progress: Progress) -> None:
                report(progress)
                display(progress)

            return Model.from_config(
                settings.model,
                settings.scheduler,
                plugins=plugins,
                progress=show,
                measure_device=config.server.measure_device,
            )

    def reread() -> Config:
        changed = options.read_config(arguments)
        share_threads_of(changed.models, plugins)  # of models that are opened from now on
        return changed

    file = ConfigFile(options.config_path(arguments), reread)
    return serve(config, load=load, plugins=plugins, file=file)
