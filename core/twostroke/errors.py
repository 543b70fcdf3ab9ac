"""The one tree of errors.

Every message names the culprit, what was expected and what to do next. The command line prints
the message and exits with `exit_code`; the server answers with `status` and `code`. Nothing
else is shown to a user, so a message must stand alone.
"""

from __future__ import annotations

from collections.abc import Sequence


class TwostrokeError(Exception):
    """Base of every error that twostroke raises on purpose.

    `status` is the HTTP status, `code` the stable machine-readable name, `exit_code` what the
    command line exits with.
    """

    status: int = 500
    code: str = "internal_error"
    exit_code: int = 2


class ConfigError(TwostrokeError):
    """The YAML (or a `--set`) is wrong. Holds every problem found, not only the first."""

    code = "config_error"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class InstallError(TwostrokeError):
    """The Python environment lacks a package, or holds two that exclude each other."""

    code = "install_error"


class BundleError(TwostrokeError):
    """A bundle on disk is missing something, was changed, or is not a bundle."""

    code = "bundle_error"


class ContractError(BundleError):
    """A graph declares inputs or outputs that the engine does not know how to feed."""

    code = "contract_error"


class ExportError(TwostrokeError):
    """A source model cannot be read, traced, or does not agree with its export."""

    code = "export_error"


class BackendError(TwostrokeError):
    """A backend cannot do what it was asked to.

    `backend` is the name of the one at fault, where it is known.
    """

    code = "backend_error"

    def __init__(self, message: str, *, backend: str | None = None) -> None:
        super().__init__(message)
        self.backend = backend


class PluginError(BackendError):
    """A plugin failed to import, clashes with another, or speaks another API version."""

    code = "plugin_error"


class BackendUnavailableError(BackendError):
    """The backend is known but finds no device, library or package here."""

    code = "backend_unavailable"


class PlacementError(BackendError):
    """Nodes run elsewhere than asked, so the start is refused."""

    code = "placement_error"


class OutOfMemoryError(TwostrokeError):
    """The memory plan does not fit, said before anything is allocated."""

    code = "out_of_memory"


class EngineError(TwostrokeError):
    """A step failed while it ran; the sequence it served is lost, the engine goes on."""

    status = 500
    code = "engine_error"


class HungRunError(EngineError):
    """A run took longer than any run should, and was ended or given up."""

    status = 500
    code = "run_hung"


class DeviceLostError(EngineError):
    """A device, or a session on it, is of no use any more: nothing that ran on it can go on.

    Backends raise it where they can tell; the engine then ends all that is in flight and opens
    sessions and buffers anew.
    """

    code = "device_lost"


class RequestError(TwostrokeError):
    """The request is wrong and was refused before any byte of a stream.

    `param` names the field at fault, where there is one.
    """

    status = 400
    code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class ContextLengthError(RequestError):
    """Prompt and answer do not fit the context; the message carries both numbers."""

    code = "context_length_exceeded"


class AuthError(RequestError):
    """No key, or one that is not known."""

    status = 401
    code = "invalid_api_key"


class ModelNotAllowedError(RequestError):
    """The key may use other models, but not this one."""

    status = 403
    code = "model_not_allowed"


class RateLimitError(RequestError):
    """The key has used up one of its limits: requests, tokens, or requests at once."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, limit: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s


class ModelNotFoundError(RequestError):
    """No model of that name is served."""

    status = 404
    code = "model_not_found"


class UnavailableError(TwostrokeError):
    """Loading, full or stopping: the same request may work in `retry_after_s` seconds."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoRoomError(UnavailableError):
    """A model does not fit beside what is loaded and cannot leave; later it may."""


class UnhealthyError(UnavailableError):
    """The model's sessions were lost, and are being made anew or were given up."""

    status = 503
    code = "model_unhealthy"


class DeadlineError(TwostrokeError):
    """The time that a request was given has passed; what it had answered so far stands."""

    status = 504
    code = "deadline_exceeded"
