"""The tests see only variables, a home, a time zone and a locale that they made."""

from __future__ import annotations

import locale
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from support.environment import MADE, made_environment, restored_process
from support.processes import environment

HOSTILE = {
    **{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "wrong"},
    **{"WANDB_MODE": "disabled", "WANDB_PROJECT": "other", "CUDA_VISIBLE_DEVICES": "7", "CUDA_LAUNCH_BLOCKING": "1"},
    **{"HTTPS_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "TOKENIZERS_PARALLELISM": "true"},
    **{"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr", "TZ": "Pacific/Chatham", "HOME": "/proc"},
    **{"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "7", "TMPDIR": "/proc", "XDG_CACHE_HOME": "/proc"},
    **{"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3", "MASTER_ADDR": "nowhere", "ACCELERATE_USE_CPU": "1"},
    **{"TRAINBUS_DISABLE_PLUGINS": "all", "PYTHONWARNINGS": "error", "PYTHONHASHSEED": "3", "COLUMNS": "20"},
    **{"GIT_DIR": "/proc", "DS_ACCELERATOR": "cuda", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "TQDM_DISABLE": "0"},
}
"""Variables of a user, each of which changes what some library does."""


def test_no_variable_of_the_user_reaches_a_test(tmp_path):
    made = made_environment({**HOSTILE, "PATH": "/bin"}, tmp_path)
    assert not {name for name, value in HOSTILE.items() if made.get(name) == value}
    assert made == made_environment(
        {"PATH": "/bin", "PYRIGHT_PYTHON_CACHE_DIR": made["PYRIGHT_PYTHON_CACHE_DIR"]}, tmp_path
    )


def test_gpus_are_visible_if_the_tests_ask_for_them(tmp_path):
    asked = {"TRAINBUS_TESTS_ON": "gpus"}
    assert made_environment({"CUDA_VISIBLE_DEVICES": "7"}, tmp_path)["CUDA_VISIBLE_DEVICES"] == ""
    assert made_environment({**asked, "CUDA_VISIBLE_DEVICES": "7"}, tmp_path)["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in made_environment(asked, tmp_path)


def test_this_process_is_in_the_made_environment():
    assert {name: os.environ.get(name) for name in MADE} == MADE
    assert not {name for name, value in HOSTILE.items() if os.environ.get(name) == value}
    assert (time.tzname[0], time.localtime(0).tm_hour) == ("UTC", 0)
    assert locale.localeconv()["decimal_point"] == "."
    assert Path.home() == Path(os.environ["HOME"])
    assert tempfile.gettempdir() == os.environ["TMPDIR"]


def test_a_test_that_changes_variables_or_the_folder_does_not_change_the_next(tmp_path):
    variables, folder = dict(os.environ), Path.cwd()
    with restored_process():
        os.environ.pop("PATH")
        os.environ["LEFT"] = "1"
        os.chdir(tmp_path)
    assert (dict(os.environ), Path.cwd()) == (variables, folder)


@pytest.mark.parametrize("variables", [None, environment()], ids=["inherited", "of the helper"])
def test_programs_of_tests_are_in_the_made_environment(variables):
    program = "import os, time; print(os.environ['HOME'], time.tzname[0], os.environ.get('HF_HUB_OFFLINE'))"
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [os.environ["HOME"], "UTC", "None"]
