"""What `Model.open` is told, as the sections of the YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from twostroke.config.load import load_config
from twostroke.config.schema import Config, ModelConfig, SchedulerConfig
from twostroke.errors import ConfigError

_S = TypeVar("_S", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Settings:
    """A model's section and the scheduler's. `name` is None where nobody named the model."""

    model: ModelConfig
    scheduler: SchedulerConfig
    block: tuple[str, ...]
    name: str | None


def settings_of(source: str, name: str | None, given: Mapping[str, Any]) -> Settings:
    """Lays what was `given` over a YAML file's settings, or over the defaults.

    Raises:
        ConfigError: an unknown setting or model, a wrong value, a wrong YAML.
    """
    _refuse_unknown(given)
    if source.endswith((".yaml", ".yml")):
        config = load_config(Path(source))
        model, scheduler = _model_named(config, name, source), config.scheduler
        block, name = config.plugins.block, model.name
    else:
        model = ModelConfig(name=name or "model", source=source)
        scheduler, block = SchedulerConfig(), ()
    return Settings(_with(model, given), _with(scheduler, given), block, name)


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    known = [*ModelConfig.model_fields, *SchedulerConfig.model_fields]
    problems = []
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            problems.append(f"{key}: unknown setting; {hint}")
    if problems:
        raise ConfigError(problems)


def _model_named(config: Config, name: str | None, source: str) -> ModelConfig:
    if name is None:
        return config.models[0]
    for model in config.models:
        if model.name == name:
            return model
    names = ", ".join(model.name for model in config.models)
    raise ConfigError([f"{source} has no model {name!r}; it has {names}"])


def _with(section: _S, given: Mapping[str, Any]) -> _S:
    """A copy of `section` with those of `given` that belong to it, checked.

    `model_fields_set` stays what somebody set.
    """
    own = {key: value for key, value in given.items() if key in type(section).model_fields}
    try:
        return type(section).model_validate({**section.model_dump(exclude_unset=True), **own})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        ]
        raise ConfigError(problems) from None
