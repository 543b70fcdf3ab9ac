"""The package that `twostroke plugins new` writes: a backend that passes the conformance kit.

`files/` holds its files as templates of `string.Template`; `$name` is the backend, `$module` the
module, `$distribution` the package.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from twostroke.backends.protocol import API_VERSION
from twostroke.errors import ConfigError

_TEMPLATES = Path(__file__).parent / "files"
_FILES = {  # where they go: what they are written from
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    ".gitignore": "gitignore.template",
    ".github/workflows/test.yml": "workflow.yml.template",
    "$module.py": "module.py.template",
    "tests/test_$module.py": "test.py.template",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write_skeleton(name: str, folder: Path | None = None) -> Path:
    """Writes a plugin package for a backend called `name` and answers its folder.

    `folder` None: `twostroke-NAME` in the working directory. It must not exist, or be empty.

    Raises:
        ConfigError: the name cannot be one of a backend and of a module, or the folder is in use.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            [
                f"{name!r} cannot be a backend's name: it takes lower-case letters, digits and "
                f"single underscores, and begins with a letter, e.g. acme_npu."
            ]
        )
    values = {
        "name": name,
        "module": f"twostroke_{name}",
        "distribution": f"twostroke-{name.replace('_', '-')}",
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "api_version": str(API_VERSION),
    }
    folder = folder or Path(values["distribution"])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError([f"{folder} exists and is not empty; name another with --out."])
    for place, template in _FILES.items():
        path = folder / Template(place).substitute(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
    return folder
