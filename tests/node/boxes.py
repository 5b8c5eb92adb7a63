"""Real sandboxes for the tests of runtimes: a busybox root, a stand-in for sbxd, an own home and network namespace."""

import asyncio
import atexit
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from node.leaks import assert_nothing_left, moment

from skerry.config import Config
from skerry.model.bundle import Bundle, IdRange
from skerry.model.ids import new_sandbox_id
from skerry.model.sandbox import Limits
from skerry.node import namespaces
from skerry.node.runtimes import RUNTIMES
from skerry.node.runtimes.command_line import CommandLine

HERE = Path(__file__).parent
HELLO_BYTES = 14
SMALL = Limits(memory_mb=128, cpu_millis=1000, processes=64)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ran inside: `code` as a shell tells it (128 + signal), `output` with stderr mixed in."""

    code: int
    output: str


@cache
def static_program(name: str) -> Path:
    """A program of these tests, compiled to one static binary, once a test run."""
    directory = tempfile.mkdtemp(prefix="skerry-test-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = Path(directory) / name
    subprocess.run(["gcc", "-O1", "-static", "-o", target, HERE / f"{name}.c"], check=True)
    return target


def make_home() -> Path:
    """The home of an instance, with the stand-in for sbxd in it.

    Not pytest's directory: the root of a sandbox's user namespace must pass, and that one is closed to it.
    """
    home = Path(tempfile.mkdtemp(prefix="skerry-test-"))
    home.chmod(0o711)
    (home / "bin").mkdir()
    shutil.copy(static_program("stand_in"), home / "bin" / "sbxd")
    return home


def require(runtime: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not installed (Debian: busybox-static)")


@dataclass
class Box:
    """One running sandbox."""

    bundle: Bundle
    channel: socket.socket

    async def greeting(self, deadline_s: float = 20.0) -> None:
        hello = await self._receive(HELLO_BYTES, deadline_s)
        assert hello[4] == 1, hello

    async def run(self, command: str, deadline_s: float = 30.0) -> Ended:
        """Run a shell command inside, as root."""
        data = command.encode()
        await asyncio.get_running_loop().sock_sendall(self.channel, struct.pack("<I", len(data)) + data)
        status, size = struct.unpack("<iI", await self._receive(8, deadline_s))
        output = (await self._receive(size, deadline_s)).decode(errors="replace")
        return Ended(os.waitstatus_to_exitcode(status), output)

    async def answers(self) -> bool:
        return (await self.run("echo alive")).output == "alive\n"

    async def _receive(self, size: int, deadline_s: float) -> bytes:
        data = b""
        async with asyncio.timeout(deadline_s):
            while len(data) < size:
                more = await asyncio.get_running_loop().sock_recv(self.channel, size - len(data))
                if not more:
                    raise EOFError("the sandbox closed its channel")
                data += more
        return data


@dataclass
class Boxes:
    """Makes sandboxes of one runtime in one home, and ends them all."""

    config: Config
    runtime: CommandLine
    _netns: list[Path] = field(default_factory=list)
    _boxes: list[Box] = field(default_factory=list)
    _since: float = field(default_factory=moment)

    @classmethod
    def open(cls, runtime: str) -> "Boxes":
        require(runtime)
        config = Config(home=make_home(), runtime=runtime, allow_shared_kernel=True)
        return cls(config, RUNTIMES[runtime](config))

    def bundle(self, limits: Limits = SMALL) -> Bundle:
        """A busybox root, ready to start."""
        sandbox_id = new_sandbox_id()
        home = self.config.home / "boxes" / sandbox_id
        rootfs, workspace = home / "root", home / "workspace"
        for directory in (rootfs / "bin", rootfs / "etc", rootfs / "tmp", rootfs / "root", workspace):
            directory.mkdir(parents=True)
        (rootfs / "tmp").chmod(0o1777)
        shutil.copy(shutil.which("busybox") or "", rootfs / "bin" / "busybox")
        subprocess.run(["chroot", rootfs, "/bin/busybox", "--install", "-s", "/bin"], check=True)
        (rootfs / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
        (rootfs / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
        ids = IdRange(0x6000_0000) if self.runtime.needs_id_range else None
        if ids is not None:
            subprocess.run(["chown", "-Rh", f"{ids.base}:{ids.base}", rootfs, workspace], check=True)
        netns = home / "netns"
        namespaces.make_netns(netns)
        self._netns.append(netns)
        bundle_directory = home / "bundle"
        return Bundle(
            sandbox_id=sandbox_id,
            directory=bundle_directory,
            rootfs=rootfs,
            workspace=workspace,
            sbxd=self.config.sbxd,
            netns=netns,
            resolv_conf="nameserver 192.0.2.1\n",
            hostname="box",
            limits=limits,
            id_range=ids,
        )

    async def start(self, limits: Limits = SMALL, *, bundle: Bundle | None = None, **changes: object) -> Box:
        """A started sandbox that has greeted."""
        bundle = bundle or self.bundle(limits)
        box = Box(replace(bundle, **changes), await self.runtime.start(replace(bundle, **changes)))
        self._boxes.append(box)
        await box.greeting()
        return box

    async def close(self) -> None:
        for box in self._boxes:
            await self.runtime.delete(box.bundle.sandbox_id)
            box.channel.close()
        for netns in self._netns:
            namespaces.drop_netns(netns)
        await assert_nothing_left(self.config, since=self._since)
        await self.runtime.close()
        shutil.rmtree(self.config.home)
