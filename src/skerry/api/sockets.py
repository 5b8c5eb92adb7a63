"""Who opens a WebSocket: by a key in a header, or by a ticket among the subprotocols. Never by anything in the URL.

A page of another origin may open WebSockets here, and that is harmless: the browser adds nothing of its own that counts
(there are no cookies), and a page that has a key or an unused ticket was given it. So `Origin` is not looked at, and
pages on any host may show a terminal.
"""

from collections.abc import MutableMapping
from typing import Any

from skerry.control import accounts, tickets
from skerry.control.deps import Deps
from skerry.model.command import Command
from skerry.model.errors import NotFound, Unauthorized
from skerry.model.ids import AccountId
from skerry.wire.terminals import TICKET_PREFIX

_TICKET_FOR = "skerry.ticket_for"


async def authenticate(deps: Deps, scope: MutableMapping[str, Any], secret: str | None) -> AccountId:
    """The account of a handshake. A ticket is used up, whatever becomes of the handshake.

    Raises:
        Unauthorized: Neither a key nor a ticket that is good.
    """
    if secret is not None:
        return await accounts.authenticate(deps, secret)
    for offered in scope["subprotocols"]:
        if offered.startswith(TICKET_PREFIX):
            ticket = await tickets.redeem(deps, offered.removeprefix(TICKET_PREFIX))
            scope[_TICKET_FOR] = ticket.command_id
            return ticket.account_id
    raise Unauthorized(
        "Send an API key as 'Authorization: Bearer <key>', or from a browser a ticket as a subprotocol. "
        "POST …/terminals/{id}/ticket gives one."
    )


def checked_ticket(scope: MutableMapping[str, Any], command: Command) -> None:
    """Raises NotFound where the handshake came with a ticket for another command: to its holder there is no other."""
    if scope.get(_TICKET_FOR, command.id) != command.id:
        raise NotFound(f"No command '{command.id}' for this ticket.")
