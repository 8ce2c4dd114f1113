import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import bixse

ROOT = Path(__file__).parents[1]
LOADS_WHAT_IT_BRINGS = """
from pathlib import Path
import bixse
from bixse.data.pydocs import load_pydocs
from bixse.judging.rubrics import load_rubric
from bixse import StudyConfig
assert "site-packages" in Path(bixse.__file__).parts, bixse.__file__
assert len(load_pydocs().queries) == 1099
assert load_rubric("trec-dl-0-3")
assert StudyConfig.load(None, {"study": "losses", "preset": "smoke"})
print("loaded")
"""


def run(*command, cwd):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_holds_every_file_of_the_package_and_works_in_an_environment_of_its_own(tmp_path):
    source = tmp_path / "source"  # a copy, since a build leaves files in the folder that it reads
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    files = {str(path.relative_to(source / "src")) for path in (source / "src").rglob("*") if path.is_file()}
    # without isolation pip takes the setuptools of the tested environment and downloads nothing
    run(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", tmp_path, cwd=source)
    (wheel,) = tmp_path.glob(f"bixse-{bixse.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not files - set(archive.namelist())
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # a download of torch takes minutes: dependencies, not bixse, come from the tested environment, behind the wheel's
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    command = tmp_path / "venv" / "bin" / "bixse"
    assert run(command, "--version", cwd=tmp_path) == f"bixse {bixse.__version__}\n"
    assert "sentence-transformers" in run(command, "doctor", cwd=tmp_path)
    assert run(python, "-c", LOADS_WHAT_IT_BRINGS, cwd=tmp_path) == "loaded\n"
