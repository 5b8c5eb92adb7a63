"""/v1/sandboxes/{id}/processes and /ports"""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.api.render import port_view, process_view
from skerry.control import files
from skerry.wire.processes import PortList, ProcessList

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["processes"])


@router.get("/processes", response_model=ProcessList)
async def list_processes(call: Caller, sandbox_id: str) -> Response:
    """What runs inside, by pid, with the command each descends from."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id, wake=False)
    now = call.deps.clock.now()
    return answer(ProcessList(data=[process_view(process, now) for process in await guest.processes()]))


@router.get("/ports", response_model=PortList)
async def list_ports(call: Caller, sandbox_id: str) -> Response:
    """The TCP ports that something inside listens on."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id, wake=False)
    return answer(PortList(data=[port_view(port) for port in await guest.ports()]))
