"""Fleets behind the Provider seam."""
