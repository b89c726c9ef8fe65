"""The `trainbus` command."""
