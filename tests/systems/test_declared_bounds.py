"""Every option of every system trains one update wherever it may be, and is refused by name wherever it may not."""

import math
from dataclasses import fields
from typing import get_args, get_type_hints

import lstm_models
import pytest
import tiny_syntax
import torch
from fairseq.models import MODEL_REGISTRY
from test_device import GROUPS, batch, some_lines

from fairseq_syntax.criterions.chunked_cross_entropy import SupervisedHeadCriterion
from fairseq_syntax.criterions.lasyn_em import LaSynEMConfig, LaSynEMCriterion
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.decoder import DECODER_SYSTEMS
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.lstm import SyntaxLSTMModel
from fairseq_syntax.model.options import option_name
from fairseq_syntax.runtime.bounds import Range
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask

# What an option needs beside it to have a part in the model.
WITH = {
    "child_head": {"parent_layer": 0},
    "parent_head": {"child_layer": 0},
    "guide_weight": {"guided_updates": 5},
    "guided_updates": {"local_attention": "predictive"},
    "dlaa_sigma": {"dlaa_alignment": "gaussian"},
    "given_parse": {"given_parse_updates": 3},
    "given_parse_updates": {"given_parse": 0.5},
    "sdrnmt_kernel": {"sdrnmt_unit_size": 100},
    "sdrnmt_unit_size": {"sdrnmt_kernel": 1},
    "label_smoothing": {"em_steps": 1},
}
CRITERION = {f.name for f in fields(LaSynEMConfig)}
LSTMS = sorted(n for n, m in MODEL_REGISTRY.items() if issubclass(m, SyntaxLSTMModel))
CONFIGS = {
    **{name: system.config for name, system in ENCODER_SYSTEMS.items()},
    **{f"{name} (decoder)": system.config for name, system in DECODER_SYSTEMS.items()},
    **{name: MODEL_REGISTRY[name].config for name in LSTMS},
    "lasyn_em": LaSynEMConfig,
}
DECLARED = [
    (name, field)
    for name, config in CONFIGS.items()
    for field in fields(config)
    if {"range", "choices"} & set(field.metadata)
]
each_option = pytest.mark.parametrize(("system", "field"), DECLARED, ids=lambda x: getattr(x, "name", x))


def build(system: str, options: dict):
    """A tiny model with a system, and its criterion."""
    if system in LSTMS:
        criterion = SupervisedHeadCriterion(tiny_syntax.tiny_task(), False, 0.1)
        return lstm_models.model(system, scale=1, **options), criterion
    if system in ("lasyn_em", "lasyn (decoder)"):
        ours = {name: value for name, value in options.items() if name in CRITERION}
        others = {name: value for name, value in options.items() if name not in ours}
        ours = {"em_steps": 1, "tag_weight": 0.0 if "latent_values" in others else 1.0, "label_smoothing": 0.0, **ours}
        criterion = LaSynEMCriterion(tiny_syntax.tiny_task(), sentence_avg=False, **ours)
        return tiny_syntax.tiny_model("lasyn_transformer", **others), criterion
    if system.startswith("predicted"):
        options = {"child_layer": 0, "parent_layer": 0, "encoder_syntax": f"supervised_heads,{system}", **options}
    elif system == "dbsa (decoder)":
        options = {"decoder_syntax": "dbsa", **options}
    else:
        options = {"encoder_syntax": system, **(GROUPS if system == "ldd" else {}), **options}
    model = tiny_syntax.tiny_model("syntax_transformer", **options)
    return model, SupervisedHeadCriterion(tiny_syntax.tiny_task(), False, 0.1)


def inside(field) -> list:
    """Values that an option may have: its bounds and what is between, or each choice."""
    bounds: Range | None = field.metadata.get("range")
    if bounds is None:
        return list(field.metadata["choices"])
    low, high = bounds.low, bounds.high
    if bounds.kind is int:
        # The model has four heads a layer. What is larger than a hundred costs memory, and is no other case.
        high = 3 if field.name.endswith(("head", "heads")) else min(100, high or 100)
        return sorted({low, low + 1, high})
    middle = math.sqrt(low * high) if low > 0 else high / 3
    return [bounds.kind(x) for x in (low, math.nextafter(low, math.inf), middle, high)]


def outside(field) -> list:
    """Values that it may not have: just beyond the bounds, denormal, infinite, no number; or none of the choices."""
    bounds: Range | None = field.metadata.get("range")
    if bounds is None:
        return ["no-such-choice", ""]
    far = [-(10**30)] if bounds.kind is int else [-5e-324, 5e-324, -math.inf, math.inf, math.nan, -1e300, 1e300]
    step = 1 if bounds.kind is int else 1e-9
    near = [bounds.low - step] + ([] if bounds.high is None else [bounds.high + (step if step == 1 else 1e-6)])
    return [x for x in (*near, *far) if not (bounds.low <= x <= (math.inf if bounds.high is None else bounds.high))]


@pytest.mark.matrix(12)
@pytest.mark.slow
@each_option
def test_an_update_with_any_value_that_is_allowed_has_a_finite_loss(system, field):
    for value in inside(field):
        with_others = {
            k: v for k, v in WITH.get(field.name, {}).items() if k in {f.name for f in fields(CONFIGS[system])}
        }
        model, criterion = build(system, {**with_others, field.name: value})
        model.train()
        sample = batch(some_lines())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loss, size, _ = criterion(model, sample)
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        after, _, _ = criterion(model, sample)
        assert math.isfinite(loss.item()) and math.isfinite(after.item()), value
        if system != "lasyn_em":
            halved, _, _ = criterion(model.half(), sample)
            assert math.isfinite(halved.item()), f"{value} in half precision"


@pytest.mark.matrix(12)
@each_option
def test_any_other_value_is_refused_by_name(system, field):
    for value in outside(field):
        for make in (build, lambda system, options: CONFIGS[system](**options)):
            if make is build or CONFIGS[system] is not LaSynEMConfig:
                with pytest.raises(SyntaxDataError) as refusal:
                    make(system, {field.name: value})
                assert refusal.value.option == option_name(field.name), value


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_options_of_the_task_are_checked_too(value):
    cfg = SyntaxTranslationConfig(parse_dropout=value)
    with pytest.raises(SyntaxDataError) as refusal:
        SyntaxTranslationTask(cfg, tiny_syntax.dictionary(), tiny_syntax.dictionary())
    assert refusal.value.option == "--parse-dropout"


@pytest.mark.parametrize("config", [*CONFIGS.values(), SyntaxTranslationConfig], ids=lambda x: x.__name__)
def test_every_number_declares_its_range_and_help_shows_it(config):
    classes = [c for c in config.__mro__ if c.__module__.startswith("fairseq_syntax")]
    ours = {name for c in classes for name in vars(c).get("__annotations__", ())}
    hints = get_type_hints(config)
    for field in fields(config):
        kinds = {hints[field.name], *get_args(hints[field.name])}
        if field.name not in ours or not field.metadata.get("help") or not kinds & {int, float}:
            continue
        if "layer" in field.name and "layers" not in field.name:
            continue  # which there are depends on the model: see layer_numbers
        assert str(field.metadata["range"]) in field.metadata["help"], field.name


@pytest.mark.matrix(20)
@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("pascal", "pascal_layers"),
        ("ldd", "ldd_layers"),
        ("lisa", "lisa_layer"),
        ("dbsa", "dbsa_layer"),
        ("dbsa (decoder)", "dbsa_decoder_layer"),
        ("supervised_heads", "child_layer"),
        ("supervised_heads", "parent_layer"),
        ("predicted_pascal", "predicted_layers"),
        ("relative_depth", "depth_layers"),
        ("relative_positions", "relative_layers"),
        ("structural_positions", "structural_layers"),
        ("gcn", "gcn_after"),
    ],
)
@pytest.mark.parametrize("value", ["2", "-3", "1000000", "x", "0,,1"])
def test_layers_that_do_not_exist_are_refused_by_name(system, name, value):
    with pytest.raises(SyntaxDataError) as refusal:
        build(system, {name: value})
    assert refusal.value.option == option_name(name)
