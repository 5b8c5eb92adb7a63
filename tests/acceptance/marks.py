"""Marks of the acceptance tests."""

import pytest

on_both = pytest.mark.parametrize("runtime", ["runsc", "crun"], indirect=True)
