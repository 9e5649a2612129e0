"""For tools that still call setup.py; everything it says is in pyproject.toml."""

from setuptools import setup

setup()
