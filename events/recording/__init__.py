"""Recordings: what a run announced and decided, in a file to read, compare, replay and show. `docs/see_the_run.md`
describes the file."""
