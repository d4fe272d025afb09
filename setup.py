"""The optional loops in C: without a compiler the package is installed without them. See pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "src/randeigen/backend/native"

setup(
    ext_modules=[
        Extension(
            "randeigen.backend.native._kernels",
            [f"{FOLDER}/kernels.c"],
            depends=[f"{FOLDER}/loops.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
