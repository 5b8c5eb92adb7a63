"""The inbox: order and bytes are kept, memory is not a multiple of them."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from skerry.guest.inbox import Inbox


def drain(inbox: Inbox) -> list[tuple[int, bytes]]:
    taken: list[tuple[int, bytes]] = []
    while inbox:
        taken.append(inbox.pop())
    return taken


def joined(chunks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Neighbours of one channel as one, ends of file apart."""
    result: list[tuple[int, bytes]] = []
    for channel, data in chunks:
        if data and result and result[-1][0] == channel and result[-1][1]:
            result[-1] = (channel, result[-1][1] + data)
        else:
            result.append((channel, data))
    return result


chunk = st.tuples(st.integers(0, 2), st.binary(max_size=3))


@given(st.lists(st.one_of(chunk, st.none()), max_size=400))
def test_what_goes_in_comes_out_in_order(steps: list[tuple[int, bytes] | None]) -> None:
    inbox, pushed, popped = Inbox(), [], []
    for step in steps:
        if step is not None:
            inbox.push(*step)
            pushed.append(step)
        elif inbox:
            popped.append(inbox.pop())
    assert joined(popped + drain(inbox)) == joined(pushed)
    assert not inbox


def test_a_quarter_million_tiny_chunks_cost_little_more_than_their_bytes() -> None:
    tracemalloc.start()
    try:
        inbox = Inbox()
        for number in range(262_144):
            inbox.push(1 + number % 2, b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_500_000
    assert len(drain(inbox)) == 262_144


def test_a_reader_that_never_catches_up_does_not_make_it_grow() -> None:
    inbox = Inbox()
    for number in range(200):
        inbox.push(1 + number % 2, b"x")
    tracemalloc.start()
    try:
        for number in range(100_000):
            inbox.push(1 + number % 2, b"x")
            inbox.pop()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
