"""A Debian system with nothing on it, in namespaces of its own: for what a stranger's first minutes are like.

The kernel, its loop devices and its cgroups are the host's; everything else is fresh. It reaches the mirrors and the
package index with the host's own settings for them.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from acceptance.servers import ROOT, eventually

TOOLS = ("mmdebstrap", "slirp4netns", "unshare", "nsenter")
_CERTIFICATES = Path("usr/local/share/ca-certificates")
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", "build", "*.egg-info", ".venv", ".*_cache")
# How the registries are reached is the machine's business, not the product's.
_KEPT = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")


class FreshSystem:
    """A system of one Debian release from `with` to its end. The clone is at /root/skerry."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.root = Path(tempfile.mkdtemp(prefix=f"skerry-{suite}-", dir="/var/tmp"))
        # The kernel's names (cgroups) are by this path: another than the host's own instance has.
        self.home = f"/var/lib/{self.root.name}"
        self._processes: list[subprocess.Popen[str]] = []
        self._first = 0

    def __enter__(self) -> "FreshSystem":
        try:
            self._install()
            self._start()
            self.run("update-ca-certificates")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def run(self, *argv: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A program in the system, as root's login there would have it; in the clone. Its output is in both streams."""
        environ = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
            "SKERRY_HOME": self.home, **{name: os.environ[name] for name in _KEPT if name in os.environ},
        }  # fmt: skip
        inside = ["nsenter", f"--target={self._first}", "--mount", "--pid", "--uts", "--net", "--ipc", "--root"]
        done = subprocess.run(
            [*inside, "env", "--chdir=/root/skerry", "-i", *(f"{k}={v}" for k, v in environ.items()), *argv],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def _install(self) -> None:
        self.root.chmod(0o755)
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", self.suite, str(self.root)]
        subprocess.run(argv, check=True, timeout=600)
        etc = self.root / "etc"
        (etc / "resolv.conf").write_text("nameserver 10.0.2.3\n")  # slirp4netns answers there
        (etc / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 fresh\n")
        if Path("/etc/pip.conf").exists():
            shutil.copy("/etc/pip.conf", etc)
        if ("/" / _CERTIFICATES).is_dir():
            shutil.copytree("/" / _CERTIFICATES, self.root / _CERTIFICATES, dirs_exist_ok=True)
        shutil.copytree(ROOT, self.root / "root" / "skerry", ignore=_LEFT_OUT)

    def _start(self) -> None:
        setup = Path(__file__).with_suffix(".sh")
        namespaces = ["--mount", "--pid", "--uts", "--net", "--ipc", "--fork", "--kill-child", "--propagation=private"]
        holder = self._spawn("unshare", *namespaces, "bash", str(setup), str(self.root))
        assert holder.stdout and holder.stdout.readline() == "ready\n", "the system's namespaces could not be made"
        self._first = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
        self._spawn("slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", str(self._first), "tap0")
        eventually("it has a network", lambda: "tap0" in Path(f"/proc/{self._first}/net/route").read_text())

    def _spawn(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process

    def _end(self) -> None:
        for process in reversed(self._processes):
            # With the first process of its namespace every other one in it goes.
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            assert process.stdout
            process.stdout.close()
        eventually("its processes are gone", lambda: not self._first or not Path(f"/proc/{self._first}").exists())
        # Its mounts go with its namespaces; only then is what lies here its own files and nobody's else.
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.root)], check=True, timeout=120)
