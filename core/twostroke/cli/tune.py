"""`twostroke tune`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.progress import ProgressDisplay
from twostroke.errors import ConfigError, ModelNotFoundError

if TYPE_CHECKING:
    from twostroke.backends.discovery import Plugins
    from twostroke.config import Config
    from twostroke.tune import Candidates, Tuned, TuneSettings
    from twostroke.tune.yaml_file import YamlFile

ABOUT = """\
Measures prefill and decode of a model on every backend, dialect and number of threads that can be
had here, in turns, with prompts and answers as long as yours, and says which pair is best. With
--write the best goes into the YAML, of which nothing else changes. Another precision is written
only with --allow-precision-change, since its answers differ. docs/placement.md tells more."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "tune",
        run,
        summary="find out where each stroke runs best, and write it into the YAML",
        about=ABOUT,
        examples=(
            "twostroke tune config.yaml",
            "twostroke tune config.yaml --prompt-tokens 2000 --answer-tokens 200 --streams 1,4",
            "twostroke tune config.yaml --quick --write",
            "twostroke tune config.yaml --precisions int4 --allow-precision-change --write",
        ),
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        type=Path,
        nargs="?",
        help="the YAML; without it ./config.yaml where there is one, else the built-in defaults",
    )
    parser.add_argument("--model", metavar="NAME", help="which model of it; default: the first")
    parser.add_argument(
        "--json", action="store_true", help="every figure, for programs; writes as --write does"
    )
    options.add_log_flag(parser, "warning")
    _add_load_flags(parser)
    _add_choice_flags(parser)


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("your requests")
    group.add_argument("--prompt-tokens", type=int, metavar="N", default=512, help="default: 512")
    group.add_argument("--answer-tokens", type=int, metavar="N", default=128, help="default: 128")
    group.add_argument(
        "--streams",
        type=options.counts,
        metavar="N,N",
        default=(1, 8),
        help="requests at once, each number judged alike; default: 1,8",
    )


def _add_choice_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is tried, and what becomes of it")
    group.add_argument(
        "--quick",
        action="store_true",
        help="a quarter of the time: no other numbers of threads, only the dialect that a backend "
        "wants, only its first device",
    )
    group.add_argument(
        "--seconds",
        type=float,
        metavar="N",
        help="what measuring may take, beside loading; default: 120, with --quick 30",
    )
    group.add_argument(
        "--precisions",
        metavar="P,P",
        default="",
        help="measure these too, e.g. int8,int4; what is no bundle yet is exported first",
    )
    group.add_argument(
        "--allow-precision-change", action="store_true", help="the best may have another precision"
    )
    end = group.add_mutually_exclusive_group()
    end.add_argument("--write", action="store_true", help="write the best into CONFIG")
    end.add_argument(
        "--dry-run", action="store_true", help="only say what would be measured, and what not"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measures, shows, and writes where it is told to."""
    options.start_logging(arguments.log_level)
    from twostroke.backends.discovery import load_plugins
    from twostroke.tune import candidates, tune
    from twostroke.tune.report import as_json, skipped_lines, table
    from twostroke.tune.yaml_file import YamlFile

    path = _path(arguments)
    file = None if path is None else YamlFile(path)  # before it is read, so that a change shows
    config, index = _config(path, arguments.model)
    settings, model = _settings(arguments), config.models[index]
    plugins = load_plugins(config.plugins.block)
    with ProgressDisplay(sys.stderr) as progress:
        found = candidates(model, plugins, settings, progress)
        if arguments.dry_run:
            _show_plan(found, settings)
            return 0
        tuned = tune(found, config.scheduler, plugins, settings, progress)
    if arguments.json:
        print(json.dumps(as_json(tuned), indent=2))
    else:
        for line in (*table(tuned), *skipped_lines(tuned.skipped)):
            print(line)
    _finish(arguments, tuned, config, index, plugins, file)
    return 0


def _finish(
    arguments: argparse.Namespace,
    tuned: Tuned,
    config: Config,
    index: int,
    plugins: Plugins,
    file: YamlFile | None,
) -> None:
    """Shows what would change in the YAML; changes it where that is asked for."""
    from twostroke.tune.edits import edits

    if tuned.chosen is None or tuned.chosen is tuned.current:
        return
    changes = edits(config.models[index], tuned.chosen.pair, plugins)
    out = sys.stderr if arguments.json else sys.stdout
    if file is None:
        settings = ", ".join(f"{'.'.join(edit.path)}: {edit.value}" for edit in changes)
        print(f"there is no YAML to change; set in the model's section {settings}", file=out)
        return
    new = file.changed(index, changes)
    print(file.diff(new), end="", file=out)
    if arguments.write:
        file.write(new)
        print(f"{file.path}: written", file=out)
    else:
        print("nothing was written; --write does it", file=out)
    own = tuned.chosen.pair.is_of_current_bundle
    if not own:
        print("the next start exports the model in its new precisions, once", file=out)


def _show_plan(found: Candidates, settings: TuneSettings) -> None:
    from twostroke.tune.report import skipped_lines

    print(settings.workload.sentence())
    for variant in found.variants:
        mark = " (what the configuration says)" if variant.is_current else ""
        print(f"{variant.stroke.value:8}{variant.name}{mark}")
    for line in skipped_lines(found.skipped):
        print(line)
    print(f"measuring takes about {settings.seconds:.0f} s, beside loading {len(found.variants)}")


def _path(arguments: argparse.Namespace) -> Path | None:
    path: Path | None = arguments.config
    if path is None and options.DEFAULT_FILE.exists():
        path = options.DEFAULT_FILE
    if path is None and arguments.write:
        raise ConfigError(["--write needs a CONFIG to write to"])
    return path


def _config(path: Path | None, name: str | None) -> tuple[Config, int]:
    from twostroke.config import load_config

    config = load_config(path)
    names = [model.name for model in config.models]
    if name is not None and name not in names:
        raise ModelNotFoundError(
            f"The configuration has no model {name!r}; its models are: {', '.join(names)}"
        )
    return config, 0 if name is None else names.index(name)


def _settings(arguments: argparse.Namespace) -> TuneSettings:
    from typing import get_args

    from twostroke.config.values import Precision
    from twostroke.tune import TuneSettings, Workload

    known = get_args(Precision)
    precisions = tuple(part.strip() for part in arguments.precisions.split(",") if part.strip())
    problems = [
        f"--precisions: {precision!r} is none of {', '.join(known)}"
        for precision in precisions
        if precision not in known
    ]
    seconds = arguments.seconds
    if seconds is not None and not seconds > 0:
        problems.append(f"--seconds must be more than 0, not {seconds}")
    if problems:
        raise ConfigError(problems)
    if seconds is None:
        seconds = 30.0 if arguments.quick else 120.0
    workload = Workload(arguments.prompt_tokens, arguments.answer_tokens, arguments.streams)
    return TuneSettings(
        workload, arguments.quick, seconds, precisions, arguments.allow_precision_change
    )
