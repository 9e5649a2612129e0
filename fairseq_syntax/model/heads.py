"""Systems that change the attention heads of an encoder or decoder, and the rules for sharing a head.

A system that works on heads is a :class:`HeadSystem`: it declares its layers and claims heads in them, makes a
:class:`~fairseq_syntax.model.attention.ScoreTerm` in each forward pass, and may have losses on the scores of heads.
:func:`check_claims` has the rules for sharing:

============  ============  ====================================================================================
one system    the other     on the same head
============  ============  ====================================================================================
replaces      replaces      rejected: the first scores would be lost
supervises    supervises    rejected: a head cannot learn two things (also for two losses of one system)
replaces      supervises    rejected for two systems: the loss would train what the other one computes
replaces      scales        allowed: scores are first replaced, then scaled, whatever the order of the options
gives         scales        rejected: scaling would change what the head must attend to
scales        scales        allowed: in the order of the options
scales        supervises    allowed: the loss is on the scaled scores, by which the head attends
anything      reads         allowed: the scores are read after replacing and scaling
============  ============  ====================================================================================

A layer whose scores are all replaced may have no queries and keys (:meth:`HeadSystem.project_scores`). A system that
uses them (:attr:`HeadSystem.reads_queries`) is rejected there.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import ScoreTerm, WhereParsed
from fairseq_syntax.model.options import SystemConfig
from fairseq_syntax.model.task import SyntaxTask

Made = TypeVar("Made")

__all__ = ["HeadClaims", "HeadLoss", "HeadSystem", "Step", "check_claims"]

Place = tuple[int, int]  # (layer, head), both 0-based


@dataclass(frozen=True)
class HeadClaims:
    """The heads of one layer that a system uses; its losses are declared by :meth:`HeadSystem.supervises`.

    Attributes:
        scales: heads whose scores it changes, whether these come from queries and keys or from another system
        replaces: heads whose scores it computes itself
        gives: those of ``replaces`` whose attention is fixed at inference (by a given parse)
        reads: heads whose scores its terms in higher layers read, in training and in search
    """

    scales: frozenset[int] = frozenset()
    replaces: frozenset[int] = frozenset()
    gives: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


class HeadLoss(NamedTuple):
    """The loss of one supervised head and its counts: scalars, summed over the supervised rows.

    These are sums, so that the loss of a batch is the sum over its parts. Like the translation loss, it is divided by
    the size of the whole update (all batches of ``--update-freq`` on all workers).

    Attributes:
        loss, nll: the weighted and the unweighted loss, in nats
        tokens: the number of rows
        correct, words: the number of words with the right parent, and of all words; 0 and 0 if not counted
    """

    loss: Tensor
    nll: Tensor
    tokens: Tensor
    correct: Tensor
    words: Tensor

    @classmethod
    def of(cls, weight: float, nll: Tensor, tokens: Tensor, counts: tuple[Tensor, Tensor] | None = None) -> HeadLoss:
        """The loss ``weight * nll``; ``counts``: ``correct`` and ``words``, if counted."""
        zero = torch.zeros_like(tokens)
        return cls(weight * nll, nll, tokens, *(counts or (zero, zero)))


class Parsed:
    """A base class of what holds the syntax of a batch, if the batch has any."""

    syntax: SyntaxBatch | None

    @property
    def parse(self) -> SyntaxBatch:
        """:attr:`syntax`, whose presence the encoder, or the caller of a loss, has checked."""
        assert self.syntax is not None
        return self.syntax


@dataclass(eq=False)  # tensors are not equal or unequal as a whole
class Step(Parsed):
    """One forward pass of the encoder or decoder, as its systems see it; it is never stored in a module.

    Attributes:
        tokens: [B, T] int64
        padding: [B, T] bool, True on padding
        syntax: the batch's parse in the columns of ``tokens``; None if it has none. In a decoder, only losses see it,
            in the columns of the target: token t + 1 of the decoder's input is piece t of the target
        scores: the scores [B, T, T] of each (layer, head) observed so far, after all score terms and before the mask.
            Layers that ``--encoder-layerdrop`` dropped in this step are missing.
    """

    tokens: Tensor
    padding: Tensor
    syntax: SyntaxBatch | None = None
    scores: dict[Place, Tensor] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """The result of ``make()``, computed once per name and step, for use in several layers."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def seen_by(self, system: HeadSystem) -> Step:
        """The step as a system sees it.

        For a system that reads the parse at inference, sentences marked as unparsed have a neutral parse. A system that
        only learns from the parse sees all parses, also those that ``--parse-dropout`` hides.
        """
        if self.syntax is None or self.syntax.parsed is None or not system.inference_needs:
            return self
        return replace(self, syntax=self.syntax.for_readers)

    @classmethod
    def of(cls, syntax: SyntaxBatch) -> Step:
        """The step of a batch, from its syntax."""
        return cls(syntax.tokens, syntax.padding, syntax)


System = TypeVar("System", bound="HeadSystem")


class Registry(dict[str, type[System]]):
    """The systems of the encoder or the decoder, by their names in its option."""

    def register(self, name: str) -> Callable[[type[System]], type[System]]:
        """A class decorator that registers the system as ``name``."""

        def add(cls: type[System]) -> type[System]:
            if self.setdefault(name, cls) is not cls:
                raise ValueError(f"two systems are called {name!r}")
            cls.name = name
            return cls

        return add


class HeadSystem(nn.Module):
    """A system in the self-attention of the encoder or the decoder.

    Attributes:
        name, config: its name in the option, and the class of its options
        training_needs, inference_needs: what the batch must contain of the parse of its side: ``"tree"`` (1-best),
            ``"arcs"`` (the parser's distribution); the class has those of the default options
        reads_queries: whether its terms use the queries of the heads, and not only their scores
        criterion: the ``--criterion`` that trains it, for recipes and tests

    Args:
        options: its options, of the type :attr:`config`
        args: the model's options; what is set in them is saved in the checkpoint
        task: the fairseq task
    """

    name: ClassVar[str]
    config: ClassVar[type[SystemConfig]] = SystemConfig
    training_needs: frozenset[str] = frozenset()
    inference_needs: frozenset[str] = frozenset()
    reads_queries: ClassVar[bool] = False
    criterion: ClassVar[str] = "chunked_cross_entropy"
    _layers: Sequence[int] = ()

    def __init__(self, options: Any, args: Namespace, task: SyntaxTask) -> None:
        super().__init__()
        self.options = options

    # -- called once, when the model is built ------------------------------------------------------------------------

    def connect(self, systems: Mapping[str, HeadSystem]) -> None:
        """See the systems of the same side, in the order of the option, before any other hook is called.

        For a system that reads the head of another one (:meth:`parent_head`). Store places, not the systems themselves:
        they would become submodules.
        """

    def layers(self) -> Sequence[int]:
        """The layers in whose self-attention it claims or supervises a head, 0-based; by default ``_layers``."""
        return self._layers

    def blocks(self) -> Sequence[int | None]:
        """The layers after which it has a block (:meth:`.EncoderSystem.block`), 0-based; None means the embeddings."""
        return ()

    def attention_heads(self, layer: int) -> int | None:
        """The number of heads of a layer, if the system sets it."""
        return None

    def fit(self, layer: int, num_heads: int) -> None:
        """Adapt to the number of heads of a layer, which another system may have set."""

    def project_scores(self, layer: int) -> bool:
        """Whether a layer has query and key projections; False only if the system replaces all of its heads."""
        return True

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        """The heads that it uses in a layer with ``num_heads``."""
        return HeadClaims()

    def supervises(self) -> Mapping[str, Place]:
        """Its losses: name → (layer, head) whose scores the loss is on."""
        return {}

    def parent_head(self) -> Place | None:
        """The head whose scores predict the parent of each piece, if the system has one."""
        return None

    # -- called in each step -----------------------------------------------------------------------------------------

    def term_where_parsed(self, step: Step, layer: int) -> ScoreTerm | None:
        """:meth:`term` for sentences with a parse, :meth:`term_without_parse` for the others."""
        seen = step.seen_by(self)
        term = self.term(seen, layer)
        if term is None or seen is step:
            return term
        assert step.syntax is not None and step.syntax.parsed is not None
        return WhereParsed(term, step.syntax.parsed, self.term_without_parse(seen, layer))

    def term_without_parse(self, step: Step, layer: int) -> ScoreTerm | None:
        """The score term of sentences without a parse; None for plain attention."""
        return None

    def term(self, step: Step, layer: int) -> ScoreTerm | None:
        """The score term of a layer in this step, or None."""
        return None

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss | None:
        """The loss of that name (:meth:`supervises`) on the head's scores [B, T, T], or None in this step."""
        raise NotImplementedError


def check_claims(side: str, layer: int, num_heads: int, systems: Sequence[HeadSystem]) -> None:
    """Check that a layer has the heads that systems claim, and that they can share them; see the table above."""
    place = f"{side} layer {layer}"
    claims = {s.name: s.claims(layer, num_heads) for s in systems}
    losses = [(s.name, loss, head) for s in systems for loss, (at, head) in s.supervises().items() if at == layer]
    query_readers = [s.name for s in systems if s.reads_queries]
    for system in systems:
        name, claimed = system.name, claims[system.name]
        trained = {head for trainer, _, head in losses if trainer == name}
        for head in sorted(claimed.scales | claimed.replaces | claimed.reads | trained):
            if not 0 <= head < num_heads:
                raise SyntaxDataError(f"{name} wants head {head} of {place}, which has heads 0 to {num_heads - 1}")
        if system.project_scores(layer):
            continue
        if claimed.replaces != frozenset(range(num_heads)):
            raise ValueError(f"{name} leaves out projections that {place} needs")
        if query_readers:
            message = f"{name} leaves out the queries of {place}, which {query_readers[0]} reads"
            raise SyntaxDataError(message, hint="give them different layers")
    for head in range(num_heads):
        if conflict := _conflict(claims, [(name, loss) for name, loss, at in losses if at == head], head):
            message = f"{conflict} head {head} of {place}"
            raise SyntaxDataError(message, hint="give them different heads or layers")


def _conflict(claims: Mapping[str, HeadClaims], training: Sequence[tuple[str, str]], head: int) -> str:
    """Why systems cannot share a head that (system, loss) pairs train, without its name; empty if they can."""
    replacing = [name for name, claimed in claims.items() if head in claimed.replaces]
    giving = [name for name, claimed in claims.items() if head in claimed.gives]
    scaling = [name for name, claimed in claims.items() if head in claimed.scales]
    if len(replacing) > 1:
        return f"{replacing[0]} and {replacing[1]} both compute the scores of"
    if len(training) > 1:
        first, second = (f"{loss} of {name}" for name, loss in training[:2])
        return f"the losses {first} and {second} cannot both train"
    for name, loss in training:
        if replacing and name != replacing[0]:
            return f"the loss {loss} of {name} would train what {replacing[0]} computes in"
    if giving and scaling:
        return f"{scaling[0]} would scale what {giving[0]} is to attend to in"
    return ""
