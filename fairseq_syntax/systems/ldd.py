"""LDD: labelled dependency distributions in self-attention.

Liu and Sima'an (2022), Passing Parser Uncertainty to the Transformer: Labeled Dependency Distributions for Neural
Machine Translation, EAMT, section 3. Each head of the first encoder layer is assigned a group of dependency labels. Its
scores are multiplied by the parser's probability that the query modifies the key with a label of that group.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import HeadInputs, ScoreTerm
from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.devices import thresholds
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system, remember_labels
from fairseq_syntax.model.heads import HeadClaims, Step
from fairseq_syntax.model.options import REMEMBERED_TEXTS, SystemConfig, layer_numbers, option
from fairseq_syntax.model.sparse_factors import SparseFactors, sparse_factor_attention
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets

if TYPE_CHECKING:
    from fairseq_syntax.data.label_groups import LabelGroups

logger = logging.getLogger(__name__)

LABELLED = ("LDD", "LDA", "LDP")  # one label group per head
UNLABELLED = ("UDD", "UDP")  # labels summed out, the same matrix for every head
UNIFORM = ("ULDD", "UUDD")  # a constant tensor
VARIANTS = (*LABELLED, *UNLABELLED, *UNIFORM)
FORMS = ("auto", "linear", "dense")


# -- the factor tensor (section 3.1) -----------------------------------------------------------------------------------


def labelled_factors(syntax: SyntaxBatch, group_of_label: Tensor, root: int, groups: int, best: bool) -> SparseFactors:
    """LDD[i, j, l] = p(head j, label in group l | i) between pieces, or the 1-best tree instead (LDP).

    The mass of the artificial root is on a word's diagonal, in the group ``root`` regardless of its label. Rows and
    columns of ``</s>`` have no entries.

    Args:
        group_of_label: [labels] int64, the group of each deprel id, -1 for none
        root: the group for the root's mass, -1 for none
        groups: L, the number of groups
        best: use the 1-best tree, with 1 in the group of each arc's label

    Returns:
        factors of size (B, L, T)
    """
    arcs = syntax.tree_arcs if best else syntax.piece_arcs
    word = syntax.word_of_piece
    to_itself = word[arcs.batch, arcs.dependent] == word[arcs.batch, arcs.head]
    group = group_of_label[arcs.label].masked_fill(to_itself, root)
    B, T = syntax.size
    return SparseFactors.of((B, groups, T), arcs.batch, group, arcs.dependent, arcs.head, arcs.prob)


def unlabelled_factors(syntax: SyntaxBatch, heads: int, best: bool) -> SparseFactors:
    """UDD[i, j] = Σ_l p(head j, label l | i) over all labels, or the 1-best tree (UDP); the same for all heads.

    Returns:
        factors of size (B, ``heads``, T)
    """
    arcs = syntax.tree_arcs if best else syntax.piece_arcs
    B, T = syntax.size
    return SparseFactors.of((B, heads, T), arcs.batch, None, arcs.dependent, arcs.head, arcs.prob)


# -- its effect on the scores (section 3.2) - --------------------------------------------------------------------------


class LddTerm(ScoreTerm):
    """Equations 4 and 5: N = softmax(S ⊙ LDD) with one matrix of LDD per head, or softmax(LDD) for LDA.

    Args:
        factors: LDD, of size (B, H, T)
        replace: replace the scores by the factors (LDA)
        form: ``linear`` or ``dense``, or ``auto`` for the faster one
    """

    def __init__(self, factors: SparseFactors, replace: bool = False, form: str = "auto") -> None:
        B, H, T = factors.size
        self._factors, self._replace = factors, replace
        self.without_dropout = form == "linear"
        # The cost of the dense form grows with the scores, that of the linear form with the entries.
        dense = len(factors.factor) * thresholds(factors.factor.device).scores_per_entry > B * H * T * T
        self._linear = form == "linear" or (form == "auto" and not dense)

    def scores(self, scores: Tensor, inputs: HeadInputs | None) -> Tensor:
        ldd = self._factors.dense(scores.dtype)
        return ldd if self._replace else scores * ldd

    def attend(self, inputs: HeadInputs, key_padding_mask: Tensor | None) -> Tensor | None:
        if not self._linear:
            return None
        if self._replace:
            return sparse_factor_attention(None, None, inputs.v, self._factors, key_padding_mask)
        return sparse_factor_attention(inputs.q, inputs.k, inputs.v, self._factors, key_padding_mask)


def uniform_factor(syntax: SyntaxBatch, groups: int) -> Tensor:
    """A constant LDD, [B, 1, T, T]: 1/(T·L) between pieces with L groups (ULDD), or 1/T with one (UUDD).

    T is the number of pieces of each sentence. Rows and columns of ``</s>`` are 0.
    """
    point = 1 / (syntax.n_pieces.clamp(min=1) * groups)
    both = syntax.real[:, :, None] & syntax.real[:, None, :]
    return (both * point[:, None, None])[:, None]


# -- the system --------------------------------------------------------------------------------------------------------


REMEMBERED_TEXTS["ldd_label_groups_text"] = "label groups (--ldd-label-groups)"


@dataclass
class LddConfig(SystemConfig):
    ldd_variant: str = option("LDD", "variant", choices=VARIANTS)
    ldd_label_groups: str = option(
        "ud", "label group of each attention head: ud, stanford, clearnlp or a file; a layer has one head per group"
    )
    ldd_layers: str = option("0", "encoder layers, from 0, comma-separated; -1 is the top layer")
    ldd_form: str = option(
        "auto",
        "algorithm: linear (time linear in the length, without attention dropout in these layers), dense, "
        "or auto: the faster one, but dense with attention dropout",
        choices=FORMS,
    )


@register_encoder_system("ldd")
class Ldd(EncoderSystem):
    """Dependency distributions in the first encoder layer or others, with a head per label group.

    The variants are those of Table 1: LDD, LDA (the distributions are the logits), LDP (1-best labelled tree), UDP
    (1-best tree), ULDD (constant 1/(T·L)) and UUDD (constant 1/T, called UDD in the table); and UDD as in section 3.1
    (labels summed out). T is the number of pieces without ``</s>``.
    """

    config = LddConfig
    training_needs = inference_needs = frozenset({"arcs"})

    def __init__(self, options: LddConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        self.variant, self.form = options.ldd_variant, options.ldd_form
        labels = remember_labels(args, task, "deprel")
        self.groups = label_groups(options, args)
        self._layers = layer_numbers("--ldd-layers", options.ldd_layers, args.encoder_layers)
        if self.variant in LABELLED:
            coverage = self.groups.check(labels[1:])  # the first label represents unknown ones
            logger.info("labels of %s: %s", self.groups.source, coverage)
        # Every batch with syntax has the tree; uniform variants use only its lengths.
        if self.variant not in ("LDD", "LDA", "UDD"):
            self.training_needs = self.inference_needs = frozenset({"tree"})
        # Not in checkpoints, which contain the labels and groups from which it is computed.
        self.register_buffer("group_of_label", torch.tensor(self.groups.table(labels)), persistent=False)

    def attention_heads(self, layer: int) -> int:
        return len(self.groups)

    def project_scores(self, layer: int) -> bool:
        return self.variant != "LDA"

    def claims(self, layer: int, num_heads: int) -> HeadClaims:
        heads = frozenset(range(num_heads))
        return HeadClaims(replaces=heads) if self.variant == "LDA" else HeadClaims(scales=heads)

    def term(self, step: Step, layer: int) -> ScoreTerm:
        syntax = step.parse
        if self.variant in UNIFORM:
            term = FactorTerm(uniform_factor(syntax, len(self.groups) if self.variant == "ULDD" else 1))
            term.without_dropout = self.form == "linear"
            return term
        factors = syntax.once(self, lambda: self._factors(syntax))  # the same in all layers
        return LddTerm(factors, replace=self.variant == "LDA", form=self.form)

    def _factors(self, syntax: SyntaxBatch) -> SparseFactors:
        best, L = self.variant in ("LDP", "UDP"), len(self.groups)
        if self.variant in UNLABELLED:
            return unlabelled_factors(syntax, L, best)
        return labelled_factors(syntax, cast(Tensor, self.group_of_label), self.groups.root, L, best)


def label_groups(options: LddConfig, args: Namespace) -> LabelGroups:
    """The groups of ``--ldd-label-groups``, or those of a checkpoint, which must not depend on another file.

    Raises:
        SyntaxDataError: the size of the model cannot be divided by their number
    """
    from fairseq_syntax.data.label_groups import parse_label_groups, read_label_groups

    text = getattr(args, "ldd_label_groups_text", None)
    if text is not None:
        groups = parse_label_groups(text, "the checkpoint's label groups")
    else:
        groups = read_label_groups(options.ldd_label_groups)
        args.ldd_label_groups_text = groups.to_text()
    if args.encoder_embed_dim % len(groups):
        raise SyntaxDataError(
            f"{len(groups)} label groups make {len(groups)} heads, which do not divide "
            f"--encoder-embed-dim {args.encoder_embed_dim}"
        )
    return groups


# 8 heads in all other layers, as in the paper, for all sizes.
register_presets("ldd_transformer", encoder_syntax="ldd", encoder_attention_heads=8, decoder_attention_heads=8)
