"""Every setting, one row each: name, type, default, meaning. File, environment and documentation come from this table.

Precedence: command line > environment (`SKERRY_<NAME>`) > `<home>/config.toml` > default; the runtime that nobody names
is the pinned one. Reads; never writes.
"""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skerry.model.errors import Invalid

DEFAULT_HOME = Path("/var/lib/skerry")
_RUNTIMES = ("runsc", "crun", "runc")


class Config(BaseModel):
    """The settings of one instance: a home directory, whose tag everything it makes on the host carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(DEFAULT_HOME, description="Directory that holds all state of this instance.")
    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(7717, ge=0, le=65535, description="TCP port of the API; 0 takes a free one.")
    user: str = Field("skerry", description="Unprivileged system user of the API process; made by `up`.")
    runtime: str = Field(
        "runsc",
        pattern=f"^({'|'.join(_RUNTIMES)})$",
        description="OCI runtime: runsc, crun or runc. Given nowhere: the pinned one, which the first start chose.",
    )
    allow_shared_kernel: bool = Field(
        False, description="Permit crun and runc, which share the host's kernel with the sandboxes."
    )
    allow_unlimited_disk: bool = Field(
        False, description="Permit sandboxes where the host cannot limit their disk use (no btrfs)."
    )
    default_template: str = Field("python", description="Template of a sandbox that names none.")
    pool_mb: int = Field(
        20_480,
        ge=1024,
        description="Size of the btrfs loop image, where the home is not on btrfs. Sparse; grows, never shrinks.",
    )
    memory_mb: int = Field(512, ge=64, description="Memory limit of a sandbox that names none.")
    cpu_millis: int = Field(1000, ge=50, description="CPU limit in thousandths of a core.")
    processes: int = Field(512, ge=16, description="Processes and threads a sandbox may have.")
    disk_mb: int = Field(10_240, ge=64, description="Disk limit of a sandbox: root layer and workspace together.")
    inodes: int = Field(1_000_000, ge=1000, description="Files a sandbox may have.")
    max_memory_mb: int = Field(16_384, ge=64, description="Largest memory limit that may be asked for.")
    command_timeout_s: int = Field(120, ge=1, description="Deadline of a command that names none.")
    max_command_timeout_s: int = Field(86_400, ge=1, description="Longest deadline that may be asked for.")
    output_cap_mb: int = Field(64, ge=1, description="Output kept per command; what lies beyond is counted, not kept.")
    sandbox_output_mb: int = Field(
        1024,
        ge=1,
        description="Output kept per sandbox: the oldest ended ones make room; what lies beyond is counted, not kept.",
    )
    output_keep_hours: int = Field(24, ge=1, description="How long the output of an ended command is kept.")
    upload_limit_mb: int = Field(102_400, ge=1, description="Largest file that one request may write.")
    idle_timeout_s: int = Field(
        1800, ge=0, description="Without use for as long, a sandbox that names no other time is stopped; 0: never."
    )
    archive_url: str = Field(
        "",
        pattern="^(|none|file:///.+|s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9._/-]*)?)$",
        description="Where the files of stopped sandboxes and snapshots are stored: file:///directory, s3://bucket/prefix,"
        " or none: then nothing can be stopped, and idle sandboxes are destroyed. Empty: `archive` in the home.",
    )
    archive_endpoint: str = Field(
        "", pattern="^(|https?://[^ ]+)$", description="Address of an S3 server that is not Amazon's."
    )
    archive_region: str = Field("us-east-1", description="Region of the S3 bucket.")
    archive_access_key: str = Field("", repr=False, description="Access key of the S3 bucket; empty: the host's role.")
    archive_secret_key: str = Field("", repr=False, description="Secret key of the S3 bucket.")
    max_calls_per_account: int = Field(
        1000, ge=1, description="Calls of one account at once, of any kind: streams and sockets count while open."
    )
    max_calls: int = Field(10_000, ge=1, description="Calls of all accounts at once.")
    max_snapshots_per_account: int = Field(
        1000, ge=1, description="Snapshots an account may have: what they hold is charged to no sandbox that is gone."
    )
    sandbox_network: str = Field(
        "", description="IPv4 /16 to number sandboxes from; empty: one of 10.128.0.0/9 chosen by the instance."
    )
    dns: str = Field("", description="Resolvers for sandboxes, comma separated; empty: those of the host.")
    deny_reach: str = Field("", description="More CIDRs that sandboxes never reach, comma separated.")
    mirror: str = Field(
        "http://deb.debian.org",
        pattern="^(https?|file|copy)://[^ ]*[^ /]$",
        description="Debian mirror that templates are built from; /debian and /debian-security lie below it.",
    )
    metrics_token: str = Field(
        "",
        pattern="^([!-~]{16,256})?$",
        repr=False,
        description="Opens /metrics and nothing else, as a bearer token; empty: only keys of the first account do.",
    )
    log_format: str = Field(
        "auto", pattern="^(auto|json|text)$", description="Form of log lines; auto: text on a terminal, else JSON."
    )
    log_mb: int = Field(
        64, ge=1, description="Size at which the log file of `skerry up` is turned over; one earlier one is kept."
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="Least level that is logged.")

    @property
    def instance(self) -> str:
        """Eight hex digits that name this instance in cgroups, interfaces, namespaces and nftables."""
        return hashlib.sha256(os.fsencode(self.home.absolute())).hexdigest()[:8]

    @property
    def run_dir(self) -> Path:
        """Sockets and pid files. Under the home, so that instances never meet."""
        return self.home / "run"

    @property
    def node_socket(self) -> Path:
        return self.run_dir / "node.sock"

    @property
    def node_dir(self) -> Path:
        """The node's own state: its sandbox records and command spools. Root's; passed through, never listed (0711)."""
        return self.home / "node"

    @property
    def runtime_pin(self) -> Path:
        """Holds the name of the runtime that this instance's sandboxes are made on. Everybody may read it."""
        return self.node_dir / "runtime"

    @property
    def sbxd(self) -> Path:
        """The daemon for the inside, as built by `up`. Every user of the host may read and execute it."""
        return self.home / "bin" / "sbxd"

    @property
    def pool_dir(self) -> Path:
        """Where the btrfs pool is mounted."""
        return self.home / "pool"

    @property
    def archive_place(self) -> str:
        """`archive_url` with the default filled in; empty: archives are kept nowhere."""
        if self.archive_url == "none":
            return ""
        return self.archive_url or f"file://{self.home / 'archive'}"

    @property
    def secrets_file(self) -> Path:
        """The keys that open the secrets in the database. The API's user makes it and alone can read it."""
        return self.home / "api" / "secrets.key"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.home / 'api' / 'skerry.db'}"


def locate(environ: Mapping[str, str] = os.environ) -> Config:
    """The instance of this environment's home, for whoever only looks for its files. All but `home` are defaults.

    Nothing is read, so that a broken `config.toml` keeps nobody from a server that runs.
    """
    return Config.model_validate({"home": _home(environ)})


def inherited(environ: Mapping[str, str] = os.environ) -> Config:
    """The settings that `serve` gave its children, whatever `config.toml` says by now. Raises Invalid."""
    return _validated(_from_environment(environ), _home(environ))


def load(overrides: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in force.

    Raises:
        Invalid: A setting is unknown or out of range, or the file cannot be read; the message says which and where.
    """
    home = _home(environ)
    given: dict[str, Any] = {k: v for k, v in (overrides or {}).items() if v is not None}
    settings = {**_from_file(home / "config.toml"), **_from_environment(environ), **given}
    if "runtime" not in settings and (pinned := _pinned(home)):
        settings["runtime"] = pinned
    return _validated(settings, home)


def _home(environ: Mapping[str, str]) -> Path:
    # Absolute: the server's processes stand elsewhere than whoever starts them.
    return Path(environ.get("SKERRY_HOME") or DEFAULT_HOME).absolute()


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {n: environ[f"SKERRY_{n.upper()}"] for n in Config.model_fields if f"SKERRY_{n.upper()}" in environ}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}. Use sudo, or point SKERRY_HOME elsewhere.") from error
    except ValueError as error:
        raise Invalid(f"{file} is not valid TOML: {error}. Mend it, or remove it for the defaults.") from error


def _pinned(home: Path) -> str | None:
    try:
        name = Config.model_validate({"home": home}).runtime_pin.read_text().strip()
    except (OSError, ValueError):
        return None
    return name if name in _RUNTIMES else None  # an unknown one is the node's to refuse


def _validated(settings: Mapping[str, Any], home: Path) -> Config:
    try:
        return Config.model_validate({**settings, "home": home})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        told = first["msg"]
        if first["type"] == "string_pattern_mismatch":  # a pattern is no answer to a person
            told = f"what it is set to has not the form for it ({Config.model_fields[name].description})"
        raise Invalid(
            f"Setting '{name}': {told}. Look at the command line, SKERRY_{name.upper()} and {home / 'config.toml'}.",
            field=name,
        ) from error
