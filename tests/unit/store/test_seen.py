"""Records that are kept between looks: the same for the same row, and never an older one."""

from typing import cast

from skerry.model.sandbox import Sandbox
from skerry.store.rows import Columns
from skerry.store.seen import Seen


def read(row: Columns) -> Sandbox:
    return cast(Sandbox, list(row))


def test_a_row_that_has_not_changed_is_read_once() -> None:
    seen = Seen(read)
    first = seen.sandbox_of((1, "sbx_a", "running"))
    assert seen.sandbox_of((1, "sbx_a", "running")) is first


def test_a_row_that_has_changed_is_read_anew() -> None:
    seen = Seen(read)
    seen.sandbox_of((1, "sbx_a", "running"))
    assert cast(list[object], seen.sandbox_of((1, "sbx_a", "failed"))) == [1, "sbx_a", "failed"]
    assert cast(list[object], seen.sandbox_of((1, "sbx_a", "running"))) == [1, "sbx_a", "running"]


def test_what_is_kept_is_bounded_and_the_one_in_use_stays_right() -> None:
    seen = Seen(read)
    records = [seen.sandbox_of((number, f"sbx_{number}", "running")) for number in range(5000)]
    assert cast(list[object], records[0]) == [0, "sbx_0", "running"]
    assert len(vars(seen)["_known"]) <= 512
    assert seen.sandbox_of((4999, "sbx_4999", "running")) is records[-1]
    assert seen.sandbox_of((0, "sbx_0", "running")) is not records[0]
