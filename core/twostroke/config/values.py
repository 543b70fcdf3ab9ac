"""The values of the YAML that have a form of their own, and what all its sections are."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000**i for i, p in enumerate(("k", "M", "G", "T"), 1)}
_UNITS |= {f"{p}iB": 1024**i for i, p in enumerate(("K", "M", "G", "T"), 1)}
_UNITS |= {"KB": 1000}


def parse_bytes(value: Any) -> Any:
    """Turns `1GiB` or `512 MB` into bytes; passes everything else on to the validator.

    Raises:
        ValueError: text that is not a size.
    """
    if not isinstance(value, str) or value == "auto":
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write for example 1GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


# `$comment` is what the loader's messages say is expected.
_BYTES_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([kKMGT]i?)?B?\s*$|\$\{"},
    ],
    "$comment": "a size such as 512MiB",
}
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0), WithJsonSchema(_BYTES_SCHEMA)]


class Section(BaseModel):
    """A part of the file: no unknown keys, and true is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_defaults(cls, data: Any) -> Any:
        return {} if data is None else data  # `server:` with every key below it commented out

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("true and false are not numbers")
        return value


DeviceName = Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1)]
Precision = Literal["fp32", "fp16", "bf16", "int8", "mixed", "int4"]
