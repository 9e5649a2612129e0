"""A fairseq that the plugin cannot build on is refused where it is registered, with what to install."""

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import fairseq
import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from matrix_part import in_a_process

from fairseq_syntax import compat
from fairseq_syntax.compat import fairseq_version
from fairseq_syntax.errors import SyntaxDataError


def fast_path(self, x, encoder_padding_mask, attn_mask=None):
    """In the official release 0.12.2, like this."""
    if not self.training:
        return torch._transformer_encoder_layer_fwd(x, self.embed_dim, self.num_heads)
    return self.self_attn(x)


def without_workers(self, dataset, disable_shuffling=False, skip_remainder_batch=False, grouped_shuffling=False):
    """The iterator of that release, whose parameter persistent_workers came later."""


@pytest.mark.parametrize(
    ("of", "name", "older", "why"),
    [
        (TransformerEncoderLayerBase, "forward", fast_path, "fast path"),
        (EpochBatchIterator, "__init__", without_workers, "persistent_workers"),
    ],
)
def test_an_older_fairseq_is_refused_before_it_is_patched(monkeypatch, of, name, older, why):
    function = getattr(of, name)
    monkeypatch.setattr(of, name, older)
    if function in fairseq_version.PARAMETERS:
        parameters = {older if key is function else key: names for key, names in fairseq_version.PARAMETERS.items()}
        monkeypatch.setattr(fairseq_version, "PARAMETERS", parameters)
    with pytest.raises(SyntaxDataError, match=why) as raised:
        compat.install()
    assert "fairseq-fixed==" in raised.value.hint and "\n" not in str(raised.value)


def test_a_fairseq_that_cannot_be_imported_is_told(tmp_path):
    """Like the release 0.12.2 on Python 3.11, in one line of the command."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").write_text("raise ValueError('mutable default')\n")
    (tmp_path / "fairseq-0.12.2.dist-info").mkdir()
    (tmp_path / "fairseq-0.12.2.dist-info/METADATA").write_text("Name: fairseq\nVersion: 0.12.2\n")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fairseq_syntax import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", program, str(tmp_path), "translate", "model.pt"]
    (tmp_path / "model.pt").touch()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "mutable default" in done.stderr and "pip uninstall --yes fairseq fairseq-fixed; pip install" in done.stderr


def test_this_fairseq_is_not_refused(caplog):
    fairseq_version.check()
    assert not caplog.text


def test_two_distributions_of_the_same_files_are_told(monkeypatch, tmp_path, caplog):
    for name, version in (("fairseq", "0.12.2"), ("fairseq_fixed", "0.12.3.1")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    fairseq_version.check()
    (record,) = caplog.records
    assert "pip uninstall --yes fairseq fairseq-fixed" in record.getMessage() and "\n" not in record.getMessage()


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.checkout
def test_the_patch_makes_of_the_official_configurations_those_of_fairseq_fixed():
    """Whose defaults are objects; the rest of the two modules is the same."""
    program = run_path(str(ROOT / "tools" / "patch_fairseq.py"))
    changed = 0
    for name in program["CONFIGURATIONS"]:
        fixed = (Path(fairseq.__file__).parents[1] / name).read_text(encoding="utf-8")
        official = re.sub(r"= field\(default=([A-Z]\w+Config)\)$", r"= \1()", fixed, flags=re.M)
        text, count = program["classes_as_defaults"](official)
        if official != fixed:  # otherwise the official one is installed
            assert text == fixed and program["classes_as_defaults"](fixed) == (fixed, 0)
        changed += count
    assert changed == 14


@pytest.mark.checkout
def test_the_page_says_what_each_distribution_of_the_base_is_for():
    table = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8").partition("## What is in the base")[2]
    required = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("\n]")[0]
    )
    names = re.findall(r'^    "([\w-]+)', required, re.M)
    listed = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.M) for name in row.split(",")}
    assert len(names) > 10 and listed - {"distribution"} == set(names)


@in_a_process
@pytest.mark.slow
def test_a_package_that_is_imported_first_is_registered_with_a_command_of_fairseq():
    """fairseq takes its ``--user-dir`` as loaded then, and would not know ``--task``."""
    code = """if True:
        import sys
        import fairseq_syntax
        assert "fairseq" not in sys.modules
        from fairseq_cli import train
        from fairseq.tasks import TASK_REGISTRY
        assert "syntax_translation" in TASK_REGISTRY
    """
    subprocess.run([sys.executable, "-c", code], check=True)
