"""The client of sbxd: frames, multiplexer, and the Guest that speaks through them. Knows no runtime and no database."""
