"""Processes and ports, and what goes through a port. A part of `GuestSuite`."""

import asyncio
import ipaddress

import pytest

from skerry.model.errors import GuestError
from skerry.testing.guest_suite.inside import DEADLINE_S, Inside, code_of, follow, start


class ProcessTests:
    """See `GuestSuite`."""

    async def test_a_running_command_is_among_the_processes(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "sleep 61; :")
        found = [each for each in await inside.guest.processes() if each.command_id == command_id]
        assert all(each.pid > 1 and each.uid == 0 for each in found)
        assert any(each.argv for each in found)  # of a child that is just being made it may be empty
        await inside.guest.kill(command_id)
        await follow(inside.guest, command_id)
        assert command_id not in {each.command_id for each in await inside.guest.processes()}

    async def test_a_listening_port_is_among_the_ports(self, inside: Inside) -> None:
        port = await inside.echo_port()
        [found] = [each for each in await inside.guest.ports() if each.port == port]
        # A server that listens everywhere may be one of IPv6, which takes IPv4 as well.
        address = ipaddress.ip_address(found.address)
        assert found.family == f"ipv{address.version}"
        assert address.is_loopback or address.is_unspecified

    async def test_a_port_carries_bytes_both_ways_and_each_end_of_file(self, inside: Inside) -> None:
        port = await inside.echo_port()
        stream = await inside.guest.open_port(port)
        block = bytes(range(256)) * 4096

        async def send() -> None:
            await stream.send(block)
            await stream.send_eof()

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            got = b""
            while data := await stream.receive():
                got += data
        assert got == block
        assert await stream.receive() == b""
        await stream.close()
        await stream.close()

    async def test_a_port_on_which_nothing_listens_is_refused(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.open_port(9)
        assert code_of(caught) == "refused"
