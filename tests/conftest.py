"""The options of a run of the tests. What the tests themselves share is in helpers/for_all_tests.py."""

import matrix_part
from matrix_part import pytest_addoption, pytest_terminal_summary  # noqa: F401


def pytest_configure(config):
    """The process that only hands the tests out to those of xdist does not import fairseq."""
    matrix_part.pytest_configure(config)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("for_all_tests")
