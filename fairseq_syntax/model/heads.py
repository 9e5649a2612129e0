"""Attention heads that systems change, in encoder or decoder, and the rules for sharing a head.

A system that works on heads is a :class:`HeadSystem`: it says which layers it is in and what it claims of their heads,
makes a :class:`~fairseq_syntax.model.attention.ScoreTerm` for each forward pass, and has losses on the scores of heads.
:func:`check_claims` holds the one rule about sharing:

============  ============  ====================================================================================
one system    the other     on the same head
============  ============  ====================================================================================
replaces      replaces      refused: the first would be lost
supervises    supervises    refused: a head cannot learn two things (two losses of one system included)
replaces      supervises    refused, unless it is one system: the loss would train what another one computes
replaces      scales        allowed: the scores are replaced first, then scaled, whatever the order of the options
gives         scales        refused: what the head is to attend to would be scaled away
scales        scales        allowed: applied in the order of the options
scales        supervises    allowed: the loss is on the scores as the head attends by them, after scaling
anything      reads         allowed: likewise
============  ============  ====================================================================================

A layer whose scores are all replaced may have no queries and keys (:meth:`HeadSystem.project_scores`): then a system
that computes with them (:attr:`HeadSystem.reads_queries`) is refused there.
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
from fairseq_syntax.model.options import SystemConfig, read_options
from fairseq_syntax.model.task import SyntaxTask

Made = TypeVar("Made")

__all__ = ["HeadClaims", "HeadLoss", "HeadSystem", "Step", "check_claims"]

Place = tuple[int, int]  # (layer, head), both 0-based


@dataclass(frozen=True)
class HeadClaims:
    """The heads of one layer that a system uses, and how; its losses are in :meth:`HeadSystem.supervises`.

    Attributes:
        scales: heads whose scores it changes, given those of the head's own queries and keys (or of who replaces them)
        replaces: heads whose scores it computes itself
        gives: those of them, that are told what to attend to at inference, instead of choosing it by their scores
        reads: heads whose scores its terms in layers above read, in search as well as in training
    """

    scales: frozenset[int] = frozenset()
    replaces: frozenset[int] = frozenset()
    gives: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


class HeadLoss(NamedTuple):
    """The loss of one supervised head and its counts: scalars, summed over the supervised rows.

    A sum, so that a batch gives what its parts give together: it is divided, with the translation loss, by the size
    of the whole update (all batches of ``--update-freq`` on all workers).

    Attributes:
        loss: weighted
        nll: not weighted, base e
        tokens: the number of rows
        correct, words: how many words have the right parent, of how many; 0 of 0 where that was not counted
    """

    loss: Tensor
    nll: Tensor
    tokens: Tensor
    correct: Tensor
    words: Tensor

    @classmethod
    def of(cls, weight: float, nll: Tensor, tokens: Tensor, counts: tuple[Tensor, Tensor] | None = None) -> HeadLoss:
        """The loss of an ``nll`` with its weight; ``counts``: of right words and of all, where they were counted."""
        zero = torch.zeros_like(tokens)
        return cls(weight * nll, nll, tokens, *(counts or (zero, zero)))


@dataclass(eq=False)  # tensors are not equal or unequal as a whole
class Step:
    """One forward pass of one side of the model, as its systems see it. Made once, and never kept on a module.

    Attributes:
        tokens: [B, T] int64
        padding: [B, T] bool, True on padding
        syntax: the batch's parse in the columns of ``tokens``; None where it has none. In a decoder it is there for the
            losses only, in the columns of the target: token t + 1 of the decoder's input is piece t of the target
        scores: [B, T, T] of each place that was observed so far, after all score terms and before the mask. A layer
            that ``--encoder-layerdrop`` left out of this step is not among them.
    """

    tokens: Tensor
    padding: Tensor
    syntax: SyntaxBatch | None = None
    scores: dict[Place, Tensor] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def parse(self) -> SyntaxBatch:
        """:attr:`syntax` of a batch that has one: the encoder, or who asks for a loss, has checked it."""
        assert self.syntax is not None
        return self.syntax

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """The result of ``make``, computed once per name and step, for use in several layers."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def seen_by(self, system: HeadSystem) -> Step:
        """The step with the parse as a system is to see it.

        A system that reads the parse at inference too sees no parse of the sentences that are without one; one that
        learns from it sees it whole.
        """
        if self.syntax is None or self.syntax.parsed is None or not system.inference_needs:
            return self
        return replace(self, syntax=self.syntax.for_readers)

    @classmethod
    def of(cls, syntax: SyntaxBatch) -> Step:
        """The step of a batch's syntax."""
        return cls(syntax.tokens, syntax.padding, syntax)


System = TypeVar("System", bound="HeadSystem")


class Registry(dict[str, type[System]]):
    """The systems of one side by the names that its option takes.

    Args:
        side: ``encoder`` or ``decoder``
    """

    def __init__(self, side: str) -> None:
        super().__init__()
        self.side = side

    def register(self, name: str) -> Callable[[type[System]], type[System]]:
        """Make the class that follows available under ``name``."""

        def add(cls: type[System]) -> type[System]:
            if name in self:
                raise ValueError(f"two {self.side} systems are called {name!r}")
            cls.name = name
            self[name] = cls
            return cls

        return add


class HeadSystem(nn.Module):
    """One system's part in the self-attention of the encoder or the decoder.

    Attributes:
        name: the word by which the option selects it
        config: its options
        training_needs, inference_needs: what the batch must bring of the parse of its side, of ``"tree"`` (1-best) and
            ``"arcs"`` (the parser's distribution)
        reads_queries: whether its terms compute with the queries of the heads, and not with their scores alone
        criterion: the ``--criterion`` that trains it; who makes recipes and tests takes it from here
    """

    name: ClassVar[str]
    config: ClassVar[type[SystemConfig]] = SystemConfig
    training_needs: frozenset[str] = frozenset()
    inference_needs: frozenset[str] = frozenset()
    reads_queries: ClassVar[bool] = False
    criterion: ClassVar[str] = "label_smoothed_cross_entropy"
    _layers: Sequence[int] = ()

    @classmethod
    def from_args(cls: type[System], args: Namespace, task: SyntaxTask) -> System:
        """Build the system from all options of a model."""
        return cls.from_config(read_options(cls.config, args), args, task)

    @classmethod
    def from_config(cls: type[System], config: Any, args: Namespace, task: SyntaxTask) -> System:
        """Build the system.

        Args:
            config: its options, of the type :attr:`config`
            args: those of the model; what is noted in them is saved in the checkpoint
            task: the fairseq task
        """
        return cls()

    # -- said once, when the model is built --------------------------------------------------------------------------

    @property
    def drops_parses(self) -> bool:
        """Whether it reads a parse in training as at inference, so that ``--parse-dropout`` takes it away."""
        return bool(self.inference_needs)

    def connect(self, systems: Mapping[str, HeadSystem]) -> None:
        """See the systems of the same side, in the order of the option, before anything else is asked.

        For a system that reads another's head (:meth:`parent_head`). Note places, not the systems themselves.
        """

    def layers(self) -> Sequence[int]:
        """Layers in whose self-attention it has a part, 0-based.

        All those for which it claims or supervises a head; by default those that it noted as
        ``_layers`` when it was built.
        """
        return self._layers

    def blocks(self) -> Sequence[int | None]:
        """Layers after which it has a block (:meth:`.EncoderSystem.block`), 0-based; None stands for the embeddings."""
        return ()

    def attention_heads(self, layer: int) -> int | None:
        """Number of heads of a layer, where the system sets it."""
        return None

    def fit(self, layer: int, num_heads: int) -> None:
        """Take the size of the heads of a layer that it acts on, which another system may have set."""

    def project_scores(self, layer: int) -> bool:
        """Whether a layer has query and key projections; False only where the system replaces all of its heads."""
        return True

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        """The heads that it uses in a layer with ``num_heads``."""
        return HeadClaims()

    def supervises(self) -> Mapping[str, Place]:
        """The losses that it has, by name, and the head on whose scores each is."""
        return {}

    def parent_head(self) -> Place | None:
        """The head whose scores say what each piece's parent is, if the system has one."""
        return None

    # -- asked in each step ------------------------------------------------------------------------------------------

    def term_where_parsed(self, step: Step, layer: int) -> ScoreTerm | None:
        """:meth:`term` for the sentences that have a parse, :meth:`term_without_parse` for the others."""
        seen = step.seen_by(self)
        term = self.term(seen, layer)
        if term is None or seen is step:
            return term
        assert step.syntax is not None and step.syntax.parsed is not None
        return WhereParsed(term, step.syntax.parsed, self.term_without_parse(seen, layer))

    def term_without_parse(self, step: Step, layer: int) -> ScoreTerm | None:
        """The score term of sentences without a parse; None leaves their attention plain."""
        return None

    def term(self, step: Step, layer: int) -> ScoreTerm | None:
        """The score term of a layer in this step; None if there is none."""
        return None

    def loss(self, name: str, scores: Tensor, step: Step) -> HeadLoss | None:
        """The loss of that name (:meth:`supervises`), or None where there is none in this step.

        Args:
            scores: [B, T, T] of the head, row: query, column: key
            step: with its syntax
        """
        raise NotImplementedError


def check_claims(side: str, layer: int, num_heads: int, systems: Sequence[HeadSystem]) -> None:
    """Refuse systems that cannot share the heads of a layer; see the table above.

    Args:
        side: ``encoder`` or ``decoder``
        systems: those with a part in the layer

    Raises:
        SyntaxDataError: two claims on one head that exclude each other, or a head that the layer
            does not have
    """
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
    """Why systems cannot share a head, as a message that ends in the name of the head; empty if they can.

    Args:
        claims: of each system, by its name
        training: the losses on the head, each with the name of its system before its own
    """
    replacing = [name for name, claimed in claims.items() if head in claimed.replaces]
    giving = [name for name, claimed in claims.items() if head in claimed.gives]
    scaling = [name for name, claimed in claims.items() if head in claimed.scales]
    if len(replacing) > 1:
        return f"{replacing[0]} and {replacing[1]} both compute the scores of"
    if len(training) > 1:
        return f"the losses {training[0][1]} and {training[1][1]} cannot both train"
    for name, loss in training:
        if replacing and name != replacing[0]:
            return f"the loss {loss} of {name} would train what {replacing[0]} computes in"
    if giving and scaling:
        return f"{scaling[0]} would scale what {giving[0]} is to attend to in"
    return ""
