"""What several test modules share: the toy corpus, made once, and a model trained on it."""

from pathlib import Path

import pytest
import toy_data

import fairseq_syntax

fairseq_syntax.register()  # as fairseq's commands have it, whichever test comes first


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> toy_data.Toy:
    """The toy corpus through the whole pipeline. Do not change its files."""
    return toy_data.make(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def trained(toy, tmp_path_factory) -> Path:
    """The checkpoint of a tiny PASCAL model, trained until its output differs from line to line."""
    directory = tmp_path_factory.mktemp("trained")
    toy_data.train(toy.data, directory, max_epoch=12)
    return directory / "checkpoint_last.pt"
