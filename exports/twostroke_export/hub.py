"""Downloads a model from the Hugging Face hub, only the files that an export reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twostroke.errors import ExportError

_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
_SUBFOLDERS = ["*/*"]  # other formats of the same weights


def download(source: str) -> tuple[Path, dict[str, Any]]:
    """Fetches `owner/name[/file.gguf][@revision]`, with huggingface_hub's progress bar.

    Returns the folder (or the .gguf file) in the hub's cache, and facts for the manifest.

    Raises:
        ExportError: no such model or revision, no access, or no network.
    """
    import huggingface_hub
    from huggingface_hub import errors

    named, _, revision = source.partition("@")
    owner, name, *inside = named.split("/", 2)
    repo_id = f"{owner}/{name}"
    try:
        if inside:
            path = Path(
                huggingface_hub.hf_hub_download(repo_id, inside[0], revision=revision or None)
            )
        else:
            path = Path(
                huggingface_hub.snapshot_download(
                    repo_id,
                    revision=revision or None,
                    allow_patterns=_WANTED,
                    ignore_patterns=_SUBFOLDERS,
                )
            )
    except errors.GatedRepoError:
        raise ExportError(
            f"{repo_id} is a gated model: accept its terms on its page, then set HF_TOKEN."
        ) from None
    except errors.RevisionNotFoundError:
        raise ExportError(f"{repo_id} has no revision {revision!r}; look at its page.") from None
    except errors.RepositoryNotFoundError:
        raise ExportError(
            f"There is no folder or file at {source}, and the hub has no model of that name "
            f"either (or it is private: set HF_TOKEN)."
        ) from None
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(source, error) from None
        raise ExportError(f"{repo_id} has no file {inside[0] if inside else ''!r}.") from None
    except Exception as error:  # HTTP clients and the disk fail in many ways
        raise _unreachable(source, error) from None
    facts = {"kind": "hub", "id": repo_id, "revision": _commit(path)}
    return path, facts | ({"file": inside[0]} if inside else {})


def _unreachable(source: str, error: Exception) -> ExportError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ExportError(
        f"There is no folder or file at {source}, and as a hub id it could not be downloaded "
        f"({first_line[:200]}). Check the path; for a model of the hub, the name and the network."
    )


def _commit(path: Path) -> str:
    """The commit in the hub's cache layout: …/snapshots/COMMIT/…"""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else ""
