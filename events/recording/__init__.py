"""Recordings: the events and flag writes of a run, in a file that you can read, compare and replay.

`docs/see_the_run/recordings.md` describes the file.
"""
