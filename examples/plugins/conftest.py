"""The fixtures of the testing kit, for the tests of all packages."""

pytest_plugins = ["trainbus.testing.fixtures"]
