"""fairseq's LSTM translation model, with hooks for systems at the source embeddings, encoder output and attention.

The options are those of fairseq's ``lstm``, and with global attention the function is the same.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from fairseq import options, utils
from fairseq.models import register_model, register_model_architecture
from fairseq.models.lstm import (
    DEFAULT_MAX_SOURCE_POSITIONS,
    DEFAULT_MAX_TARGET_POSITIONS,
    Embedding,
    LSTMDecoder,
    LSTMEncoder,
    LSTMModel,
    base_architecture,
)
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import BatchSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import IncrementalState
from fairseq_syntax.model.loop_gradients import DeferredLinear
from fairseq_syntax.model.lstm_attention import Encoded, GlobalAttention, SourceAttention
from fairseq_syntax.model.options import SystemConfig, add_options, check_task, read_options, without_parse
from fairseq_syntax.model.task import SyntaxTask


class SyntaxLSTMEncoder(LSTMEncoder):
    """fairseq's LSTM encoder, which passes the batch's syntax on to the decoder.

    Args:
        options: the options of the system
        args: all options of the model
        dictionary, sizes: as in fairseq

    Attributes:
        needs: what the model needs of the batch's syntax: nothing, or ``{"tree"}``
        attended_units: the size of the states that the decoder attends to
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, options: Any, args: Namespace, dictionary: Any, **sizes: Any) -> None:
        super().__init__(dictionary, **sizes)
        self.attended_units = self.output_units

    def forward(  # type: ignore[override]
        self, src_tokens: Tensor, src_lengths: Tensor, src_syntax: BatchSyntax | None = None
    ) -> Encoded:
        """Encode a batch.

        Args:
            src_tokens: [B, S] int64, padded on either side, each sentence ending in ``</s>``
            src_lengths: [B] int64, the tokens of each sentence including ``</s>``, in any order

        Raises:
            SyntaxDataError: the model needs the parse, and the batch has none
        """
        tokens = utils.convert_padding_direction(src_tokens, self.padding_idx, left_to_right=True)
        syntax = None
        if self.needs:
            if src_syntax is None:
                raise without_parse("this model cannot translate a sentence without its parse")
            syntax = SyntaxBatch(src_syntax, tokens, self.padding_idx).for_readers
        x = self.dropout_in_module(self.embed_tokens(tokens)).transpose(0, 1)
        # The loader keeps counts on the host; without them, this waits for the device, as fairseq's encoder does.
        if syntax is None:
            lengths = src_lengths.cpu()
        else:
            lengths = torch.from_numpy(syntax.lengths.pieces.astype("int64")) + 1  # and </s>
        states, hiddens, cells = self.run(self.lstm, self.embed(x, syntax), lengths, src_lengths)
        return self.enrich(Encoded(states, hiddens, cells, tokens.eq(self.padding_idx).t(), syntax=syntax), x)

    def embed(self, x: Tensor, syntax: SyntaxBatch | None) -> Tensor:
        """The changed source embeddings [S, B, C], after dropout; ``syntax`` has the same columns."""
        return x

    def enrich(self, encoded: Encoded, x: Tensor) -> Encoded:
        """The changed encoder output; ``x`` [S, B, C] are the source embeddings, after dropout."""
        return encoded

    def run(self, lstm: nn.LSTM, x: Tensor, lengths: Tensor, same_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run an LSTM over [S, B, C]: states [S, B, E], zero on padding, and final hidden and cell states [L, B, E].

        Args:
            lengths: [B] int64 on the host, at least 1
            same_lengths: the same on the device of ``x``
        """
        # Sorted here, on the host and on the device: PyTorch would sort on the host and copy the order to the device
        # and back. fairseq's batches are sorted already.
        is_sorted = bool((lengths[:-1] >= lengths[1:]).all())
        if not is_sorted:
            order = same_lengths.argsort(descending=True, stable=True)
            x, lengths = x.index_select(1, order), lengths.sort(descending=True).values
        states, hiddens, cells = run_sorted(lstm, x, lengths)
        if not is_sorted:
            back = order.argsort()
            states, hiddens, cells = (t.index_select(1, back) for t in (states, hiddens, cells))
        if lstm.bidirectional:
            hiddens, cells = self.combine_bidir(hiddens, x.size(1)), self.combine_bidir(cells, x.size(1))
        return self.dropout_out_module(states), hiddens, cells

    def reorder_encoder_out(self, encoder_out: Encoded, new_order: Tensor) -> Encoded:  # type: ignore[override]
        """The output for the selected rows of the search."""
        return encoder_out.select(new_order)


def run_sorted(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM over sorted sentences [S, B, C]: states [S, B, E], zero on padding; final hidden and cell states.

    Args:
        lengths: [B] int64 on the host, at least 1, in descending order
    """
    packed, (hiddens, cells) = lstm(nn.utils.rnn.pack_padded_sequence(x, lengths))
    states, _ = nn.utils.rnn.pad_packed_sequence(packed, total_length=x.size(0))
    return states, hiddens, cells


class SyntaxLSTMDecoder(LSTMDecoder):
    """fairseq's LSTM decoder with input feeding, with any attention over the source."""

    streams = 1  # the number of LSTMs with the same weights that run in parallel

    def __init__(self, dictionary, attention: SourceAttention, **options: Any) -> None:
        super().__init__(dictionary, attention=False, **options)
        self.attention = attention

    def extract_features(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: Encoded,
        incremental_state: IncrementalState | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the decoder over ``prev_output_tokens``, [N, T] int64; in a search that has begun, over the last column.

        Returns:
            features [N, T, C], and: in evaluation the attention [N, T, S] if requested; in training
            ``{"decoder_losses": …}`` if the attention has losses (:mod:`.losses`); otherwise None
        """
        if encoder_out.memory is None:
            memory = self.attention.remember(encoder_out)
            encoder_out.memory = memory if encoder_out.sentence is None else memory.select(encoder_out.sentence)
        if encoder_out.loop is None:
            encoder_out.loop = self.loop_weights()
        memory, (recurrent, biases) = encoder_out.memory, encoder_out.loop
        first = 0
        # In the first step of a search the state is an empty dictionary, and all tokens are read.
        if incremental_state:
            first = prev_output_tokens.size(1) - 1
            prev_output_tokens = prev_output_tokens[:, -1:]
            hiddens, cells, feed = self.cached(incremental_state)
        else:
            hiddens, cells = self.initial_state(encoder_out)
            feed = torch.zeros_like(hiddens[0])

        x = self.dropout_in_module(self.embed_tokens(prev_output_tokens)).transpose(0, 1)
        # The first cell's product with the embeddings does not depend on the previous step.
        of_embeddings = F.linear(x, self.layers[0].weight_ih[:, : x.size(2)], biases[0])
        of_embeddings = of_embeddings.repeat(1, self.streams, 1)
        outs, reads = [], []
        keep_reads = not self.training and self.need_attn
        for j, of_embedding in enumerate(of_embeddings):
            for i, plus in enumerate((of_embedding, *biases[1:])):
                below = self.dropout_out_module(hiddens[i - 1]) if i else feed
                gates = recurrent[i](torch.cat((below, hiddens[i]), dim=1))
                # expand: the fused cell adds two tensors of the same size.
                hiddens[i], cells[i] = step_cell(gates, plus.expand_as(gates), cells[i])
            out, read = self.attention(hiddens[-1], memory, first + j)
            feed = self.dropout_out_module(out)
            outs.append(feed)
            if keep_reads:
                reads.append(read)
        if incremental_state is not None:
            rows = prev_output_tokens.size(0)
            state = torch.stack((*hiddens, *cells, feed)).view(-1, self.streams, rows, self.hidden_size)
            self.set_incremental_state(incremental_state, "cached_state", {"states": state})

        features = self.merge(torch.stack(outs, dim=0)).transpose(0, 1)
        if hasattr(self, "additional_fc") and self.adaptive_softmax is None:
            features = self.dropout_out_module(self.additional_fc(features))
        if keep_reads:
            return features, self.attention.over_source(torch.stack(reads, dim=1), encoder_out)
        losses = self.attention.losses(memory, prev_output_tokens.ne(self.embed_tokens.padding_idx))
        if unnamed := losses.keys() - set(self.attention.supervises()):
            raise ValueError(f"losses that the attention's supervises() does not name: {', '.join(sorted(unnamed))}")
        return features, {"decoder_losses": losses} if losses else None

    def loop_weights(self) -> tuple[list[DeferredLinear], list[Tensor]]:
        """The weights of each cell, those of its input (the first cell's input feed) and its state in one; its bias."""
        inputs = [cell.weight_ih for cell in self.layers]
        inputs[0] = inputs[0][:, -self.hidden_size :]
        weights = [torch.cat((i, cell.weight_hh), dim=1) for i, cell in zip(inputs, self.layers)]
        return [DeferredLinear(w) for w in weights], [cell.bias_ih + cell.bias_hh for cell in self.layers]

    def initial_state(self, encoder_out: Encoded) -> tuple[list[Tensor], list[Tensor]]:
        """The initial hidden and cell states [N, H] of each layer, from the final ones of the encoder."""
        hiddens, cells = encoder_out.per_row(encoder_out.hiddens), encoder_out.per_row(encoder_out.cells)
        if self.encoder_hidden_proj is not None:
            hiddens, cells = self.encoder_hidden_proj(hiddens), self.encoder_cell_proj(cells)
        return list(hiddens), list(cells)

    def merge(self, outs: Tensor) -> Tensor:
        """Combine the outputs of the streams."""
        return outs

    def cached(self, incremental_state: IncrementalState) -> tuple[list, list, Tensor]:
        """The hidden and cell states and the input feed after the previous step of a search."""
        states = self.get_incremental_state(incremental_state, "cached_state")["states"]
        states = states.view(states.size(0), -1, self.hidden_size)
        return list(states[: self.num_layers]), list(states[self.num_layers : -1]), states[-1]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the rows of a search, as its hypotheses are reordered."""
        if incremental_state:
            states = self.get_incremental_state(incremental_state, "cached_state")["states"]
            reordered: dict[str, Tensor | None] = {"states": states.index_select(2, new_order)}
            self.set_incremental_state(incremental_state, "cached_state", reordered)


def step_cell(gates: Tensor, plus: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden and cell states [N, H] after one step of an LSTM cell.

    Args:
        gates: [N, 4H], before the nonlinearities, in PyTorch's order: input, forget, cell, output
        plus: [N, 4H], added to the gates
        cell: [N, H], the previous cell state
    """
    if gates.is_cuda:  # one kernel forward and one backward, as in PyTorch's own cell
        hidden, cell, _ = torch.ops.aten._thnn_fused_lstm_cell(gates, plus.to(gates.dtype), cell.to(gates.dtype))
        return hidden, cell
    input_gate, forget_gate, cell_gate, output_gate = (gates + plus).chunk(4, dim=1)  # [N, H] each
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(cell_gate)
    return torch.sigmoid(output_gate) * torch.tanh(cell), cell


class SyntaxLSTMModel(LSTMModel):
    """fairseq's LSTM translation model; a system replaces its encoder, its attention or its decoder.

    Attributes:
        config: the class of its options
        encoder_class, decoder_class: built with its options
        training_needs, inference_needs: what the batch must contain of the source's syntax
    """

    config: ClassVar[type[SystemConfig]] = SystemConfig
    encoder_class: ClassVar[type[SyntaxLSTMEncoder]] = SyntaxLSTMEncoder
    decoder_class: ClassVar[type[SyntaxLSTMDecoder]] = SyntaxLSTMDecoder
    training_needs: frozenset[str] = frozenset()
    inference_needs: frozenset[str] = frozenset()

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's options and those of the system."""
        super().add_args(parser)
        add_options(parser, cls.config)

    @classmethod
    def remember(cls, args: Namespace, task: SyntaxTask) -> None:
        """Record in ``args``, and so in the checkpoint, what the model needs to know about the task's data."""

    @classmethod
    def build_model(cls, args: Namespace, task: SyntaxTask) -> SyntaxLSTMModel:
        """Build the model from fairseq's options for ``lstm`` and those of the system."""
        base_architecture(args)
        check_task(task)
        if not options.eval_bool(args.decoder_attention):
            raise SyntaxDataError("--decoder-attention 0: without attention no system has a part in the decoder")
        cls.remember(args, task)
        if args.encoder_layers != args.decoder_layers:
            raise SyntaxDataError("--encoder-layers must match --decoder-layers")
        source, target = task.source_dictionary, task.target_dictionary
        src_embed, tgt_embed = build_embeddings(args, source, target)
        system_options = read_options(cls.config, args)
        encoder = cls.encoder_class(
            system_options,
            args,
            source,
            embed_dim=args.encoder_embed_dim,
            hidden_size=args.encoder_hidden_size,
            num_layers=args.encoder_layers,
            dropout_in=args.encoder_dropout_in,
            dropout_out=args.encoder_dropout_out,
            bidirectional=args.encoder_bidirectional,
            pretrained_embed=src_embed,
            max_source_positions=getattr(args, "max_source_positions", DEFAULT_MAX_SOURCE_POSITIONS),
        )
        encoder.needs = cls.inference_needs
        adaptive = getattr(args, "criterion", None) == "adaptive_loss"
        decoder = cls.decoder_class(
            target,
            cls.build_attention(system_options, args.decoder_hidden_size, encoder.attended_units),
            embed_dim=args.decoder_embed_dim,
            hidden_size=args.decoder_hidden_size,
            out_embed_dim=args.decoder_out_embed_dim,
            num_layers=args.decoder_layers,
            dropout_in=args.decoder_dropout_in,
            dropout_out=args.decoder_dropout_out,
            encoder_output_units=encoder.output_units,
            pretrained_embed=tgt_embed,
            share_input_output_embed=args.share_decoder_input_output_embed,
            adaptive_softmax_cutoff=utils.eval_str_list(args.adaptive_softmax_cutoff, type=int) if adaptive else None,
            max_target_positions=getattr(args, "max_target_positions", DEFAULT_MAX_TARGET_POSITIONS),
        )
        return cls(encoder, decoder)

    @classmethod
    def build_attention(cls, options: Any, hidden_size: int, source_size: int) -> SourceAttention:
        """The decoder's attention over the source; by default fairseq's.

        Args:
            options: the options of the system
            hidden_size, source_size: the sizes of the decoder's and the encoder's states
        """
        return GlobalAttention(hidden_size, source_size)

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses that a criterion must collect (:mod:`.losses`)."""
        return self.decoder.attention.supervises()

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        src_syntax: BatchSyntax | None = None,
    ) -> tuple[Tensor, Any]:
        """Logits [B, T, V] and the decoder's second output; arguments as in the encoder and the decoder."""
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(src_tokens, src_lengths, src_syntax))


Model = TypeVar("Model", bound=type[SyntaxLSTMModel])


def register_lstm(name: str) -> Callable[[Model], Model]:
    """A class decorator that registers the model, and an architecture of the same name with fairseq's sizes."""

    def register(model: Model) -> Model:
        register_model(name)(model)
        register_model_architecture(name, name)(base_architecture)
        return model

    return register


def build_embeddings(args: Namespace, source, target) -> tuple[nn.Embedding, nn.Embedding]:
    """The embeddings of the source and the target dictionary, which may be the same module."""
    shared = args.share_all_embeddings
    if shared and source != target:
        raise SyntaxDataError("--share-all-embeddings requires a joint dictionary")
    if shared and args.encoder_embed_dim != args.decoder_embed_dim:
        raise SyntaxDataError("--share-all-embeddings requires --encoder-embed-dim to match --decoder-embed-dim")
    if shared and args.decoder_embed_path not in (None, args.encoder_embed_path):
        raise SyntaxDataError("--share-all-embeddings is not compatible with --decoder-embed-path")
    if shared:
        args.share_decoder_input_output_embed = True
    if args.share_decoder_input_output_embed and args.decoder_embed_dim != args.decoder_out_embed_dim:
        raise SyntaxDataError(
            "--share-decoder-input-output-embed requires --decoder-embed-dim to match --decoder-out-embed-dim"
        )
    src_embed = build_embedding(source, args.encoder_embed_dim, args.encoder_embed_path)
    tgt_embed = src_embed if shared else build_embedding(target, args.decoder_embed_dim, args.decoder_embed_path)
    src_embed.weight.requires_grad_(not args.encoder_freeze_embed)
    if args.decoder_freeze_embed:
        tgt_embed.weight.requires_grad_(False)
    return src_embed, tgt_embed


def build_embedding(dictionary, size: int, path: str | None) -> nn.Embedding:
    """An embedding for a dictionary, initialised from a file of vectors if given."""
    embedding = Embedding(len(dictionary), size, dictionary.pad())
    if path:
        vectors = utils.parse_embedding(path)
        utils.print_embed_overlap(vectors, dictionary)
        embedding = utils.load_embedding(vectors, dictionary, embedding)
    return embedding
