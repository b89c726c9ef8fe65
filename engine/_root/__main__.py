"""`python -m trainbus` is the command `trainbus`."""

import sys

from trainbus.engine.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
