"""Which ONNX Runtime is installed: there must be exactly one.

Every distribution of ONNX Runtime (`onnxruntime`, `onnxruntime-gpu`, `onnxruntime-directml` …)
installs the same import package `onnxruntime`. Two of them overwrite each other's files, and what
then loads is neither.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from twostroke.errors import InstallError

MIN_RUNTIME = (1, 24)
"""The first release that tells on which provider each node landed."""

_HOW_TO_INSTALL = (
    'Install one: pip install "twostroke[cpu]" (any machine), "twostroke[cuda]" (NVIDIA) '
    'or "twostroke[directml]" (Windows).'
)
_MODULE_FILE = "onnxruntime/__init__.py"
_CANDIDATE = re.compile(r"(onnxruntime|ort)[-_.].*\.(dist|egg)-info", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuntimeDistribution:
    """An installed distribution that brings the import package `onnxruntime`."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed_runtimes(path: Sequence[str] | None = None) -> tuple[RuntimeDistribution, ...]:
    """The distributions on `path` (None: sys.path) that bring `onnxruntime`, by name.

    Packages beside it, such as onnxruntime-genai, bring another import package and do not count.
    """
    found = {}
    for folder in sys.path if path is None else path:
        for info in _metadata_folders(Path(folder or ".")):
            distribution = importlib.metadata.Distribution.at(info)
            name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
            brings = (file.as_posix() == _MODULE_FILE for file in distribution.files or ())
            if name not in found and any(brings):
                found[name] = RuntimeDistribution(name, distribution.version)
    return tuple(found[name] for name in sorted(found))


def _metadata_folders(site: Path) -> Iterator[Path]:
    """Those of ONNX Runtime's distributions, told by their names: reading all takes 0.1 s."""
    try:
        yield from (entry for entry in site.iterdir() if _CANDIDATE.fullmatch(entry.name))
    except OSError:  # a zip file, or a folder that is not there
        return


def refuse_two_runtimes(runtimes: Sequence[RuntimeDistribution] | None = None) -> None:
    """Refuses an environment where distributions of ONNX Runtime overwrite each other.

    Raises:
        InstallError: more than one; the message holds the commands that mend it.
    """
    runtimes = installed_runtimes() if runtimes is None else runtimes
    if len(runtimes) > 1:
        listed = " and ".join(str(runtime) for runtime in runtimes)
        names = " ".join(runtime.name for runtime in runtimes)
        raise InstallError(
            f"{listed} are installed together and overwrite each other's files. Remove them with "
            f"`pip uninstall -y {names}`, then install one. {_HOW_TO_INSTALL}"
        )


def check_install(runtimes: Sequence[RuntimeDistribution] | None = None) -> None:
    """Refuses an environment without exactly one usable ONNX Runtime.

    A build from source without a distribution's metadata counts as one.

    Raises:
        InstallError: none, more than one, or one that is too old.
    """
    runtimes = installed_runtimes() if runtimes is None else runtimes
    refuse_two_runtimes(runtimes)
    if not runtimes:
        if importlib.util.find_spec("onnxruntime") is None:
            raise InstallError(f"ONNX Runtime is not installed. {_HOW_TO_INSTALL}")
        return
    numbers = tuple(int(part) for part in re.findall(r"\d+", runtimes[0].version)[:2])
    if numbers < MIN_RUNTIME:
        wanted = ".".join(map(str, MIN_RUNTIME))
        raise InstallError(
            f"{runtimes[0]} is too old: twostroke needs {wanted} or later, to prove on which "
            f'provider a graph runs. Upgrade with `pip install "{runtimes[0].name}>={wanted}"`.'
        )
