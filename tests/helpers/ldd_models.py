"""Random sentences with distributions, and a small LDD model to give them to."""

import random
from argparse import Namespace

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import fairseq_syntax  # noqa: F401  registers the model
from fairseq_syntax.corpus.store.flat import FlatSyntax
from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.data.label_groups import parse_label_groups
from fairseq_syntax.data.labels import UNKNOWN
from fairseq_syntax.data.packing import pack, unpack

PAD, EOS = 1, 2
LABELS = [UNKNOWN, "root", "nsubj", "obj", "iobj", "det", "case", "aux:pass"]
GROUPS = parse_label_groups("root: root\nsubject: nsubj\nobject: obj iobj\nother: det aux\n-: case\n")


def random_sentence(rng: random.Random, words: int) -> StoredSentence:
    """A random tree and a random distribution, several labels for some pairs; not normalised to the last bit."""
    heads = [0] * words
    order = rng.sample(range(words), words)
    for at, word in enumerate(order):
        heads[word] = word if at == 0 else order[rng.randrange(at)]
    arcs = []
    for dependent in range(words):
        places = {(rng.randrange(words), rng.randrange(1, len(LABELS))) for _ in range(rng.randint(0, 4))}
        arcs += [(dependent, h, label, rng.random() / len(places)) for h, label in sorted(places)]
    return StoredSentence(
        pieces=[rng.choice([1, 1, 2, 3]) for _ in range(words)],
        head=heads,
        deprel=[1 if h == w else rng.randrange(2, len(LABELS)) for w, h in enumerate(heads)],
        upos=[0] * words,
        xpos=[0] * words,
        arcs=arcs,
    )


def flat_of(sentences: list[StoredSentence], arcs: bool = True) -> FlatSyntax[torch.Tensor]:
    return unpack(pack(MemoryStore(sentences).fetch(np.arange(len(sentences)), arcs=arcs)))


def tokens_of(sentences: list[StoredSentence], left: bool) -> torch.Tensor:
    rows = [[4 + (7 * i + 3 * s.head[0]) % 20 for i in range(sum(s.pieces))] + [EOS] for s in sentences]
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(r)) + r if left else r + [PAD] * (width - len(r)) for r in rows])


def some_sentences(seed: int = 0, lengths=(4, 7, 1, 0, 5)) -> list[StoredSentence]:
    rng = random.Random(seed)
    return [random_sentence(rng, n) for n in lengths]


class Task:
    def __init__(self, labels=LABELS) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for i in range(30):
            self.source_dictionary.add_symbol(f"w{i}")
        self.labels = lambda side: {"deprel": labels, "upos": [UNKNOWN], "xpos": [UNKNOWN]}


def build(tmp_path, arch: str = "ldd_transformer_tiny", task=None, **options):
    groups = tmp_path / "groups.txt"
    groups.write_text(GROUPS.to_text(), encoding="utf-8")
    options = {"ldd_label_groups": str(groups), "dropout": 0.0, "max_source_positions": 64, **options}
    args = Namespace(arch=arch, max_target_positions=64, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(3)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task or Task())
    # Scores of a new model are nearly 0, which every factor leaves nearly 0.
    attention = model.encoder.layers[0].self_attn
    if attention.project_scores:
        with torch.no_grad():
            attention.q_proj.weight.mul_(5)
    return model
