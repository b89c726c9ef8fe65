"""The command line: flags and configuration files become dataclasses."""
