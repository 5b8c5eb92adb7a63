"""What a template is made of, read from its TOML file. Parses and checks; builds nothing."""

import hashlib
import json
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import skerry
from skerry.model.errors import Invalid

# Part of every digest: raise it when the builder would make something else of the same declaration.
BUILDER_VERSION = 1

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class WheelFile:
    """Files out of a wheel of the Python package index: `members` maps prefixes in it to paths below `into`."""

    requirement: str
    into: str
    members: Mapping[str, str]
    sha256: Mapping[str, str]  # by machine


@dataclass(frozen=True, slots=True)
class TextFile:
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """A built-in template as declared. `exclude`: paths that dpkg never unpacks."""

    name: str
    description: str
    suite: str
    packages: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    files: tuple[TextFile, ...] = ()
    links: tuple[Link, ...] = ()
    wheels: tuple[WheelFile, ...] = field(default=())

    def digest(self) -> str:
        """32 hex digits that name the content: the same declaration and builder on the same kind of machine."""
        content = [BUILDER_VERSION, platform.machine(), {**asdict(self), "description": ""}]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def builtin_directory() -> Path:
    """Where the shipped declarations are: inside an installed package, or beside `src/` in a checkout."""
    package = Path(skerry.__file__).parent
    installed = package / "builtin_templates"
    return installed if installed.is_dir() else package.parents[1] / "templates"


def load_all(directory: Path) -> dict[str, Declaration]:
    """Every declaration in a directory, by name.

    Raises:
        Invalid: A file is not a declaration; the message names it.
    """
    return {d.name: d for d in (load(file) for file in sorted(directory.glob("*.toml")))}


def load(file: Path) -> Declaration:
    """One declaration.

    Raises:
        Invalid: The file is broken, or has a member that is unknown or malformed.
    """
    try:
        return _parse(tomllib.loads(file.read_text()))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"The template {file} is not valid: {error}.") from error


def _parse(raw: dict[str, Any]) -> Declaration:
    known = {"name", "description", "suite", "packages", "exclude", "file", "link", "wheel"}
    if unknown := raw.keys() - known:
        raise ValueError(f"unknown member {min(unknown)!r}")
    packages = tuple(_checked(p, _PACKAGE, "package") for p in cast("list[str]", raw["packages"]))
    return Declaration(
        name=_checked(raw["name"], _NAME, "name"),
        description=str(raw["description"]),
        suite=_checked(raw["suite"], _NAME, "suite"),
        packages=tuple(sorted(packages)),
        exclude=tuple(_absolute(path) for path in cast("list[str]", raw.get("exclude", []))),
        files=tuple(TextFile(_absolute(f.pop("path")), **f) for f in _tables(raw, "file")),
        links=tuple(Link(_absolute(link.pop("path")), **link) for link in _tables(raw, "link")),
        wheels=tuple(_wheel(**wheel) for wheel in _tables(raw, "wheel")),
    )


def _tables(raw: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [dict(table) for table in cast("list[dict[str, Any]]", raw.get(name, []))]


def _wheel(requirement: str, into: str, members: dict[str, str], sha256: dict[str, str]) -> WheelFile:
    for target in members.values():
        _absolute("/" + target)
    hashes = {machine: _checked(value, _SHA256, "sha256") for machine, value in sha256.items()}
    return WheelFile(_checked(requirement, _REQUIREMENT, "requirement"), _absolute(into), members, hashes)


def _checked(value: object, form: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"not a {what}: {value!r}")
    return value


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or "\n" in path:
        raise ValueError(f"not an absolute path: {path!r}")
    return path
