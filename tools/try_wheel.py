"""Install a wheel into a new environment, import it there, and run examples/minimal.py.

    python tools/try_wheel.py dist/trainbus-0.1.0-py3-none-any.whl

The dependencies of the wheel come from the environment that runs this script.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

IMPORT_CHECK = """
import sys, trainbus
from pathlib import Path
home = Path(trainbus.__file__)
assert Path(sys.prefix) in home.parents, f"trainbus is imported from {home}, not from the wheel"
assert (home.parent / "py.typed").is_file(), "py.typed is not in the wheel"
missing = [name for name in trainbus.__all__ if not hasattr(trainbus, name)]
assert not missing, missing
print(f"trainbus {trainbus.__version__}: {len(trainbus.__all__)} names, imported from the wheel")
"""


def main(wheel: Path) -> None:
    """Try one wheel. Any failure raises an exception."""
    with tempfile.TemporaryDirectory() as scratch:
        environment, empty = Path(scratch) / "venv", Path(scratch) / "empty"
        empty.mkdir()
        venv.create(environment, with_pip=False)
        python = environment / "bin" / "python"
        # Python finds the packages of the folder in this file, but ignores .pth files in that folder. So an editable
        # install of trainbus there is not visible.
        (site_packages(python) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--ignore-installed", str(wheel.resolve())], check=True)
        subprocess.run([str(python), "-c", IMPORT_CHECK], cwd=empty, check=True)
        shutil.copy(ROOT / "examples" / "minimal.py", empty)
        subprocess.run([str(python), "minimal.py"], cwd=empty, check=True)


def site_packages(python: Path) -> Path:
    """Return the folder of an environment's packages."""
    statement = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run([str(python), "-c", statement], check=True, capture_output=True, text=True).stdout.strip()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
