"""One module in C over the stable ABI: a wheel runs with every Python from 3.11 on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "orderchain_speed",
            ["src/orderchain_speed.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
