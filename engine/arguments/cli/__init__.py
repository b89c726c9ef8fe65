"""The command-line parser: flags, configuration files and dictionaries become dataclasses."""
