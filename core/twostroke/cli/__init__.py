"""The command line, one small module a command.

Modules import what they need inside `run`, so that `--help` does not wait for it.
"""

from twostroke.cli.main import main

__all__ = ["main"]
