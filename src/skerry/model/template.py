"""A template: what a sandbox's root file system starts as. Built-in ones are declared in `templates/*.toml`."""

from dataclasses import dataclass
from enum import StrEnum


class TemplateStatus(StrEnum):
    PENDING = "pending"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TemplateState:
    """A template as a node has it. `digest` names the exact content once it is ready."""

    name: str
    description: str
    status: TemplateStatus
    digest: str | None = None
    size_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """One step of a build. `fraction` is 0…1 and never falls; `line` is for a person."""

    template: str
    fraction: float
    line: str
