"""The networks of this node's sandboxes: `none` (loopback only) and `bridge` (a link of its own, NAT out).

What it changes on the host, all named by the instance: network namespaces bound in `<run_dir>/netns`, interfaces
`sk<instance>…`, the nftables table `skerry_<instance>`, the gateway's address on `lo`, and forwarding of the interfaces
with a default route, if it was off (then `skerry_forwarding`, shared by all instances, keeps them from routing anything
else). It never touches another program's rules, and never the settings of all interfaces at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import structlog

from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import Refused, TooBusy, Unavailable
from skerry.model.ids import SandboxId, is_id
from skerry.model.leak import LeakKind
from skerry.model.metrics import Traffic
from skerry.model.sandbox import NetworkMode
from skerry.node.network import addressing, host, links, netns, nftables, probes, resolver, sysctl
from skerry.node.network.addressing import AddressPlan
from skerry.node.network.dns import NameServer, parse_servers
from skerry.node.network.policy import FORWARDING_TABLE, SPECIAL_PURPOSE, Policy, forwarding_guard, ruleset
from skerry.node.traces import Trace, entries

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8
_RELOAD_RETRY_S = 1.0
_log = structlog.get_logger()


class Network:
    """The networks of one instance. `open` first; every verb may be called twice."""

    def __init__(self, config: Config) -> None:
        """Raises Invalid when a setting of the network is not well-formed."""
        self._instance = config.instance
        self._directory = config.run_dir / "netns"
        self._wanted = addressing.parse_sandbox_network(config.sandbox_network)
        self._denied = SPECIAL_PURPOSE + addressing.parse_deny_reach(config.deny_reach)
        self._servers = parse_servers(config.dns)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="network")
        self._policy: Policy | None = None
        self._loaded = ""  # the table as nft shows it right after loading
        self._guarded: tuple[str, ...] = ()
        self._names: NameServer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._indices: dict[SandboxId, int] = {}
        self._next = 0
        self._locks: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()

    async def open(self) -> None:
        """Install the firewall and the name server, and take over what an earlier process of this instance left.

        Live sandboxes keep their network; links and files that belong to nobody are removed.

        Raises:
            Refused: The host cannot do it; the message says what to do. Nothing new is left behind.
        """
        if self._policy is not None:
            return
        try:
            await self._in_thread(self._set_up)
            self._names = NameServer(self._plan.gateway, self._servers)
            await self._names.open()
        except BaseException:
            with contextlib.suppress(Refused, OSError):  # why it did not open is what has to be told
                await self.close()
            raise
        self._keeper = asyncio.create_task(self._keep_rules())

    async def close(self) -> None:
        """Stop the name server and, when no sandbox is attached, put the host back as it was. Safe to call twice.

        While sandboxes are attached the firewall stays: they are never without it, not even without a node.
        """
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        if self._names is not None:
            await self._names.close()
            self._names = None
        if self._policy is not None:
            try:
                await self._in_thread(self._take_down)
            finally:
                self._policy = None

    async def attach(self, sandbox_id: SandboxId, mode: NetworkMode | str) -> Path:
        """The bound network namespace of a sandbox, complete: made, or repaired where something is missing.

        Call it before each start, since runsc takes the address off the link it is given; never while the sandbox
        runs, since the kernel would then answer beside gVisor on the same address.

        Raises:
            Refused: The kernel would not. Nothing is left behind of a network that did not exist before.
            TooBusy: All addresses are given out.
        """
        self._check_id(sandbox_id)
        path = self._directory / sandbox_id
        async with self._lock(sandbox_id):
            if NetworkMode(mode) is NetworkMode.NONE:
                await self._in_thread(self._attach_none, sandbox_id, self._indices.get(sandbox_id))
                self._indices.pop(sandbox_id, None)
            else:
                await self._attach_with_address(sandbox_id)
        return path

    async def detach(self, sandbox_id: SandboxId) -> None:
        """Remove everything of a sandbox's network. Unknown: nothing happens."""
        self._check_id(sandbox_id)
        async with self._lock(sandbox_id):
            await self._in_thread(self._remove, sandbox_id, self._indices.get(sandbox_id))
            self._indices.pop(sandbox_id, None)

    async def list(self) -> set[SandboxId]:
        """All sandboxes there is anything of: a namespace or a link."""
        return await self._in_thread(self._found)

    async def traces(self) -> Sequence[Trace]:
        """Every namespace and link of this instance, and its rules where they are not as they were loaded."""
        return await self._in_thread(self._traces)

    async def traffic(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Traffic]:
        """What went over each one's link since it was made. Those without a link are left out."""
        plan, indices = self._plan, self._indices
        names = {plan.interface(indices[one]): one for one in sandbox_ids if one in indices}
        if not names:
            return {}
        counted = await self._in_thread(links.traffic, self._instance)
        return {names[name]: traffic for name, traffic in counted.items() if name in names}

    async def resolv_conf(self, mode: NetworkMode | str) -> str:
        """The text of /etc/resolv.conf inside. Under `none` it names no server: programs then ask loopback only."""
        if NetworkMode(mode) is NetworkMode.NONE:
            return "# This sandbox has no network.\n"
        return f"nameserver {self._plan.gateway}\n"

    async def probes(self) -> Sequence[Probe]:
        """What of this host's network works. Changes nothing; works before `open`."""
        return await self._in_thread(probes.run, self._instance, self._servers)

    @property
    def name_server_pid(self) -> int:
        """The process that answers sandboxes' questions for names; 0 while there is none."""
        return self._names.pid if self._names is not None else 0

    # ── in the event loop ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _plan(self) -> AddressPlan:
        return self._active.plan

    @property
    def _active(self) -> Policy:
        if self._policy is None:
            raise Unavailable("The network is not open.")
        return self._policy

    def _check_id(self, sandbox_id: SandboxId) -> None:
        # It becomes a file's name and is recorded on an interface.
        if not is_id(sandbox_id, "sbx"):
            raise Refused(f"'{sandbox_id}' is not the id of a sandbox.")
        _ = self._active

    def _lock(self, sandbox_id: SandboxId) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    async def _attach_with_address(self, sandbox_id: SandboxId) -> None:
        known = sandbox_id in self._indices
        index = self._index(sandbox_id)
        try:
            await self._in_thread(self._attach_bridge, sandbox_id, index)
        except Refused:
            if not known:
                del self._indices[sandbox_id]
            raise

    def _index(self, sandbox_id: SandboxId) -> int:
        """The sandbox's index, given out in a circle: an address rests as long as possible before it is used again."""
        if sandbox_id not in self._indices:
            used = set(self._indices.values())
            if len(used) >= addressing.CAPACITY:
                raise TooBusy("All addresses for sandboxes are in use. Destroy some, or use the network mode 'none'.")
            while self._next in used:
                self._next = (self._next + 1) % addressing.CAPACITY
            self._indices[sandbox_id] = self._next
            self._next = (self._next + 1) % addressing.CAPACITY
        return self._indices[sandbox_id]

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call to its end, even when the caller is cancelled: half an attach is not left running."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await work
            raise

    async def _keep_rules(self) -> None:
        """Put the rules back whenever somebody removes some (`nft flush ruleset` takes those of all programs)."""
        changed = asyncio.Event()
        changed.set()  # something may have happened since they were loaded
        watch = nftables.Watch(self._active.table, changed.set)
        watch.open()
        try:
            while True:
                await changed.wait()
                changed.clear()
                try:
                    await self._in_thread(self._reload)
                except Refused as error:
                    _log.error("firewall_not_restored", table=self._active.table, reason=error.message)
                    await asyncio.sleep(_RELOAD_RETRY_S)
                    changed.set()
        finally:
            watch.close()

    # ── in threads ───────────────────────────────────────────────────────────────────────────────────────────────

    def _set_up(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            plan = host.settle(self._instance, self._wanted, self._servers or resolver.host_servers())
            self._policy = Policy(plan, self._denied)
            self._load()
            self._guarded = host.forward_from(host.uplinks())
            self._adopt()
        except OSError as error:
            raise Refused(f"The network for sandboxes could not be set up: {error}.") from error

    def _load(self) -> None:
        nftables.load(ruleset(self._active))
        self._loaded = nftables.listing(self._active.table)
        if not self._loaded:
            raise Refused(f"nft loaded the table {self._active.table} without a word, but it is not there.")

    def _reload(self) -> None:
        if nftables.listing(self._active.table) != self._loaded:
            _log.warning("firewall_restored", table=self._active.table)
            self._load()
        if self._guarded and not nftables.listing(FORWARDING_TABLE):
            nftables.load(forwarding_guard(self._guarded))

    def _adopt(self) -> None:
        for path in self._directory.iterdir():
            if not netns.is_bound(path):
                path.unlink()  # from before a reboot
        for link in links.host_ends(self._instance):
            index = addressing.index_of(link.name, self._instance)
            if index is None or not link.owner or not (self._directory / link.owner).exists():
                links.delete(link.name)
                continue
            self._indices[SandboxId(link.owner)] = index
        self._next = (max(self._indices.values(), default=-1) + 1) % addressing.CAPACITY

    def _take_down(self) -> None:
        if links.host_ends(self._instance):
            return
        with contextlib.ExitStack() as undo:  # the next step is tried even when one fails
            undo.callback(links.withdraw, self._plan)
            undo.callback(nftables.delete, self._active.table)
            undo.callback(host.stop_forwarding, self._instance)

    def _found(self) -> set[SandboxId]:
        names = {path.name for path in self._directory.iterdir()} if self._directory.exists() else set[str]()
        return {SandboxId(name) for name in names} | set(self._indices)

    def _traces(self) -> Sequence[Trace]:
        found = entries(LeakKind.NETNS, self._directory)
        found += [
            Trace(LeakKind.INTERFACE, link.owner or link.name, link.name) for link in links.host_ends(self._instance)
        ]
        table = self._active.table
        if nftables.listing(table) != self._loaded:
            found.append(Trace(LeakKind.NFT_RULES, table, f"table inet {table}"))
        return found

    def _attach_none(self, sandbox_id: SandboxId, index: int | None) -> None:
        path = self._directory / sandbox_id
        try:
            if index is not None:
                links.delete(self._plan.interface(index))
            if netns.is_bound(path):
                netns.inside(path, lambda: netns.set_up("lo"))
            else:
                path.unlink(missing_ok=True)
                netns.create(path, lambda: None)
        except OSError as error:
            raise Refused(f"No network namespace could be made for the sandbox: {error}.") from error

    def _attach_bridge(self, sandbox_id: SandboxId, index: int) -> None:
        path, name = self._directory / sandbox_id, self._plan.interface(index)
        new_namespace, new_link = not netns.is_bound(path), not links.exists(name)
        try:
            self._forward_from_new_uplinks()
            self._connect(sandbox_id, index)
        except (OSError, Refused) as error:
            if new_link:
                links.delete(name)
            if new_namespace:
                netns.remove(path)
            raise Refused(f"The network of the sandbox could not be made: {error}.") from error

    def _connect(self, sandbox_id: SandboxId, index: int) -> None:
        path, name = self._directory / sandbox_id, self._plan.interface(index)
        if not netns.is_bound(path):
            path.unlink(missing_ok=True)
            links.delete(name)  # its other end was in a namespace that is gone
            netns.create(path, sysctl.no_ipv6_on_new_links)
        elif links.exists(name) and netns.inside(path, lambda: links.repair_inner_end(self._plan, index)):
            links.repair_host_end(self._plan, index)
            netns.settle_link(name)
            return
        links.delete(name)
        links.connect(self._plan, index, sandbox_id, path)
        netns.inside(path, lambda: links.repair_inner_end(self._plan, index))
        netns.settle_link(name)

    def _forward_from_new_uplinks(self) -> None:
        """The host may have moved to another network since (another cable, Wi-Fi, a VPN)."""
        if any(not sysctl.forwards(name) for name in host.uplinks()):
            self._guarded = host.forward_from(host.uplinks())

    def _remove(self, sandbox_id: SandboxId, index: int | None) -> None:
        try:
            if index is not None:
                links.delete(self._plan.interface(index))
            netns.remove(self._directory / sandbox_id)
        except OSError as error:
            raise Refused(f"The network of the sandbox could not be removed: {error}.") from error
