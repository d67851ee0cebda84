"""The list of what may have been sent, as a lease keeps it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outbox_core.outbox.leases import decode, encode


@given(st.sets(st.integers(1, 2**63 - 1)))
def test_every_id_comes_back(ids: set[int]) -> None:
    assert decode(encode(ids)) == sorted(ids)


def test_a_thousand_neighbours_take_about_a_kilobyte() -> None:
    assert len(encode(range(10**12, 10**12 + 1000))) < 1100
