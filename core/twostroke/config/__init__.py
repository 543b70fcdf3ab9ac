"""The YAML: its schema, its loader, and errors that say what to write instead."""

from twostroke.config.load import load_config
from twostroke.config.schema import (
    DEMO_SOURCE,
    Config,
    KVConfig,
    ModelConfig,
    PluginsConfig,
    SchedulerConfig,
    ServerConfig,
    StrokeConfig,
)

__all__ = [
    "DEMO_SOURCE",
    "Config",
    "KVConfig",
    "ModelConfig",
    "PluginsConfig",
    "SchedulerConfig",
    "ServerConfig",
    "StrokeConfig",
    "load_config",
]
