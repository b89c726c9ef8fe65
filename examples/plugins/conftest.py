"""The fixtures of the kit, for the tests of all packages."""

pytest_plugins = ["trainbus.testing.fixtures"]
