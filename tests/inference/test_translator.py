"""What the Translator does to its models, and to the words of a parse."""

from types import SimpleNamespace
from unittest import mock

import lstm_models
import pytest
import torch
from tiny_syntax import LABELS, dictionary

from fairseq_syntax.data.batch import unpack
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import default_head
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.translator import Translator
from fairseq_syntax.text.conllu import ParsedLine


@pytest.mark.parametrize("arch", ["dlaa_lstm", "tree2seq_lstm", "local_attention_lstm"])
def test_an_lstm_builds_no_map_of_its_attention_in_search(arch):
    model = lstm_models.model(arch)
    inputs = lstm_models.net_input(lstm_models.lines(3))
    with torch.no_grad():
        logits, attention = model(**inputs)
        assert attention is not None
        task = SimpleNamespace(build_generator=lambda models, options: None)
        Translator([model], task, alignment_heads=[default_head(model)])
        with mock.patch.object(type(model.decoder.attention), "over_source", side_effect=AssertionError):
            found, attention = model(**inputs)
    assert attention is None
    torch.testing.assert_close(found, logits)


def test_a_form_with_a_space_has_two_pieces_without_a_segmentation():
    """Each piece belongs to its own word: the tokens that the encoder reads are as many as the parse's pieces."""
    words = dictionary()
    task = SimpleNamespace(
        source_segmenter=None,
        source_dictionary=words,
        target_dictionary=words,
        source_labels=LABELS,
        needs=lambda side: frozenset({"tree"}),
        cfg=SimpleNamespace(syntax_parser_dir=""),
    )
    rows = [("w4", 2, "a"), ("w5 w6", 0, "root"), ("w7", 2, "b")]
    block = "".join(
        f"{i}\t{form}\t_\tN\tn\t_\t{head}\t{label}\t_\t_\n" for i, (form, head, label) in enumerate(rows, 1)
    )
    given = InteractiveInput(task)
    tokens, lengths = given.encode([block])
    assert tokens[0].tolist() == [4, 5, 6, 7, 2] and lengths == [5]
    dataset = given.dataset(tokens, lengths)
    batch = dataset.collater([dataset[0]])
    syntax = unpack(batch["net_input"]["src_syntax"])
    assert syntax.pieces.tolist() == [1, 2, 1]


@pytest.mark.parametrize("sentences", ["A man sleeps.", ParsedLine(), [None], ["a", 3], iter(["a"])])
def test_one_text_given_for_a_list(trained, sentences):
    """A text is a sequence of texts, of its characters."""
    with pytest.raises(SyntaxDataError, match="a list of sentences is wanted"):
        Translator.load(trained, device="cpu").translate(sentences)
