# SPDX-License-Identifier: Apache-2.0
"""`pip install ./python`: a wheel of slurm_zero, with libzero, its modules and zerorun.

It has what `make install` installs, in the folders of an environment that correspond to those of a
prefix: lib/libzero.so.2, lib/slurm-zero/, bin/zerorun. So the package finds the library three
folders up, and zerorun finds it beside bin, as in every installation.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
# Python's folder of packages is always below lib this way, where libzero is.
WHEEL = """\
Wheel-Version: 1.0
Generator: slurm-zero
Root-Is-Purelib: true
Tag: {tag}
"""


def run(*command):
    subprocess.run(command, cwd=TOP, check=True)


def build(root):
    """Builds what is not built yet, and installs it below `root`."""
    if sys.version_info < (3, 10) or sysconfig.get_config_var("Py_GIL_DISABLED"):
        # pip shows what is printed here, and of an exception first how it came to it.
        sys.exit(
            f"slurm_zero needs Python 3.10 or later with the GIL: {sys.executable} is {sys.version}"
        )
    if not (TOP / "Makefile").exists():
        made = (TOP / "configure").exists()
        configure = ["./configure"] if made else ["./bootstrap", "--no-install"]
        run(*configure, "--with-python=yes", f"PYTHON={sys.executable}")
    run("make", f"-j{os.cpu_count()}")
    run("make", "install", f"DESTDIR={root}")


def collect(root, data):
    """Yields the files of an installation: path in the wheel, path."""
    library = next(root.rglob("libzero.so.2"))
    modules = library.parent / "slurm-zero"
    package = modules / "python" / "slurm_zero"
    if not (package / "_zero.abi3.so").exists():
        raise RuntimeError(f"{TOP} was configured without Python's headers: configure it again")
    for path in sorted(package.rglob("*.*")):
        yield f"slurm_zero/{path.relative_to(package)}", path
    for path in sorted(modules.glob("*.so")):
        yield f"{data}/data/lib/slurm-zero/{path.name}", path
    yield f"{data}/data/lib/libzero.so.2", library
    yield f"{data}/scripts/zerorun", next(root.rglob("bin/zerorun"))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version = re.search(r"\((.*?)\)", (TOP / "debian/changelog").read_text())[1]
    tag = "cp310-abi3-" + re.sub(r"\W", "_", sysconfig.get_platform())
    name = f"slurm_zero-{version}"
    file = Path(wheel_directory) / f"{name}-{tag}.whl"
    record = f"{name}.dist-info/RECORD"
    lines = []
    with (
        tempfile.TemporaryDirectory() as root,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel,
    ):
        def add(path, content, mode=0o644):
            info = zipfile.ZipInfo(path)
            info.external_attr = mode << 16
            wheel.writestr(info, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{path},sha256={digest},{len(content)}\n")

        build(root)
        info = TOP / "python" / "slurm_zero.dist-info"
        for path, source in collect(Path(root), f"{name}.data"):
            add(path, source.read_bytes(), source.stat().st_mode)
        metadata = (info / "METADATA").read_bytes()
        add(f"{name}.dist-info/METADATA", metadata + b"Requires-Dist: torch>=2.10\n")
        add(f"{name}.dist-info/entry_points.txt", (info / "entry_points.txt").read_bytes())
        add(f"{name}.dist-info/WHEEL", WHEEL.format(tag=tag).encode())
        add(record, "".join([*lines, f"{record},,\n"]).encode())
    return file.name
