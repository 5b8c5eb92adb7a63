"""Fakes for the seams, and the conformance suites that fakes and real parts pass alike. For writers of backends."""
