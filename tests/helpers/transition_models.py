"""Tiny models of transition-based parsers, trained in seconds on the toy language of :mod:`parse_models`."""

from __future__ import annotations

from pathlib import Path

import pytest
from parse_models import conllu, sentences


def spacy_pipeline(folder: Path, lang: str = "en") -> Path:
    """A pipeline with a tagger and a parser, in ``folder``."""
    spacy = pytest.importorskip("spacy")
    from spacy.tokens import Doc
    from spacy.training import Example
    from spacy.util import fix_random_seed

    fix_random_seed(0)
    pipeline = spacy.blank(lang)
    embedding = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 16, "depth": 1, "embed_size": 200}
    embedding |= {"window_size": 1, "maxout_pieces": 2, "subword_features": True, "pretrained_vectors": None}
    parser = {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "parser", "extra_state_tokens": False}
    parser |= {"hidden_width": 16, "maxout_pieces": 2, "use_upper": True, "nO": None, "tok2vec": embedding}
    pipeline.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": embedding}})
    pipeline.add_pipe("parser", config={"model": parser})
    examples = []
    for block in conllu(sentences(60)).strip().split("\n\n"):
        rows = [row.split("\t") for row in block.split("\n")]
        words, heads = [row[1] for row in rows], [int(row[6]) - 1 for row in rows]
        heads = [place if head < 0 else head for place, head in enumerate(heads)]
        labels = ["ROOT" if row[7] == "root" else row[7] for row in rows]
        gold = Doc(pipeline.vocab, words=words, heads=heads, deps=labels, tags=[row[4] for row in rows])
        examples.append(Example(Doc(pipeline.vocab, words=words), gold))
    optimizer = pipeline.initialize(lambda: examples)
    optimizer.learn_rate = 0.02
    for step in range(30):
        at = 10 * step % len(examples)
        pipeline.update(examples[at : at + 10], sgd=optimizer)
    pipeline.to_disk(folder)
    return folder


def udpipe_model(path: Path, parser: str = "iterations=2;hidden_layer=10;embedding_form=8;embedding_feats=0") -> Path:
    """A model with a tokenizer, a tagger and a parser, in the file ``path``."""
    udpipe = pytest.importorskip("ufal.udpipe")
    reader, error = udpipe.InputFormat.newConlluInputFormat(), udpipe.ProcessingError()
    reader.setText(conllu(sentences(20)))
    training, sentence = udpipe.Sentences(), udpipe.Sentence()
    while reader.nextSentence(sentence, error):
        training.append(sentence)
        sentence = udpipe.Sentence()
    tokenizer = "epochs=1;dimension=16;batch_size=5;segment_size=20"  # whose training takes most of the time
    tagger = "models=1;iterations=1;templates_1=tagger;guesser_suffix_rules=2;guesser_enrich_dictionary=0"
    model = udpipe.Trainer.train("morphodita_parsito", training, udpipe.Sentences(), tokenizer, tagger, parser, error)
    assert not error.occurred(), error.message
    path.write_bytes(model)
    return path
