"""Some cells of the table of systems and ways (``tests/helpers/ways.py``): what broke before, and each kind."""

import pytest
import ways

CELLS = [
    ("supervised_heads", "`--encoder-layerdrop 0.5`"),
    ("lisa", "`--encoder-layerdrop 0.5`"),
    ("pascal", "ensemble with plain"),
    ("pascal", "`--constraints`"),
    ("ldd (dense)", "fairseq-interactive"),
    ("relative_depth", "`--print-alignment`"),
    ("structural_positions", "fairseq-validate"),
    ("predicted_pascal", "`--checkpoint-activations`"),
    ("gcn", "`--share-all-embeddings`"),
    ("dbsa", "default"),
    ("lasyn (K = 2)", "default"),
    ("pascal + supervised_heads + lasyn", "`--amp`"),
    ("dlaa (hard)", "ensemble with plain"),
    ("tree2seq", "bfloat16 model"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return ways.make(tmp_path_factory.mktemp("ways"))


@pytest.mark.slow
@pytest.mark.parametrize("row, way", CELLS, ids=lambda x: x.strip("`"))
def test_a_cell_works(bench, row, way):
    assert ways.run(bench, row, way) == ways.Outcome("works")


@pytest.mark.slow
def test_what_is_not_to_be_is_refused_or_said_not_to_be_there(bench):
    refused = ways.run(bench, "pascal", "`--truncate-source --max-source-positions 12`")
    assert refused.kind == "refused" and "--truncate-source" in refused.why
    assert ways.run(bench, "dlaa (hard)", "`--encoder-layerdrop 0.5`").kind == "–"
