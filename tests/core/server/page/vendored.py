"""What the page has from npm: which file of which package stands where, and how it comes there.

`make vendor` runs this module; a test compares what is there with the pinned packages.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "core" / "twostroke" / "server" / "page"
VENDOR = PAGE / "static" / "vendor"
AXE = Path(__file__).parent / "vendor"  # axe-core is for tests only

FILES = {
    "@highlightjs/cdn-assets/es/highlight.min.js": VENDOR / "highlight.min.js",
    "@highlightjs/cdn-assets/LICENSE": VENDOR / "highlight.LICENSE",
    "dompurify/dist/purify.es.mjs": VENDOR / "purify.es.mjs",
    "dompurify/LICENSE": VENDOR / "purify.LICENSE",
    "marked/lib/marked.esm.js": VENDOR / "marked.esm.js",
    "marked/LICENSE": VENDOR / "marked.LICENSE",
    "axe-core/axe.min.js": AXE / "axe.min.js",
    "axe-core/LICENSE": AXE / "axe.LICENSE",
}
"""Paths inside `node_modules`, and where they are kept. Byte for byte the packages' own."""


@contextmanager
def packages() -> Iterator[Path]:
    """A folder `node_modules` with the pinned packages, for as long as it is used.

    npm checks each against the hash in `package-lock.json`, and runs none of their scripts.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(PAGE / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=folder, check=True, timeout=240)
        yield Path(folder) / "node_modules"


if __name__ == "__main__":
    with packages() as found:
        for source, target in FILES.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found / source, target)
            print(target.relative_to(ROOT))
