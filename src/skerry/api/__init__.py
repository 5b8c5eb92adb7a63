"""HTTP: parse, call control, render."""
