"""The nouns: frozen dataclasses, enums and pure functions. Standard library only; no clock, no I/O."""
