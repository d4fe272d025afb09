"""The optional loops in C: without a compiler, or with RANDEIGEN_NATIVE=0, they are left out."""

import os

from setuptools import Extension, setup

FOLDER = "src/randeigen/backend/native"
LOOPS = Extension(
    "randeigen.backend.native._kernels",
    [f"{FOLDER}/kernels.c"],
    depends=[f"{FOLDER}/{name}.h" for name in ("loops", "gram", "fold", "covariance")],
    extra_compile_args=["-O3"],
    optional=True,
)

setup(ext_modules=[] if os.environ.get("RANDEIGEN_NATIVE") == "0" else [LOOPS])
