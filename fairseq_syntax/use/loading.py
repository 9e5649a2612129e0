"""Loading of trained models."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.dataclass.utils import overwrite_args_by_name

from fairseq_syntax import register
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import check_device
from fairseq_syntax.runtime.named_files import missing_model


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which PyTorch computes in one thread, so that no threads of OpenMP stay behind with this one.

    If another thread translates, as in a server, those would wait for work beside its own, more than there are cores:
    then OpenMP lets all of them sleep after each operation instead of waiting for the next.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def load_models(
    paths: Sequence[str | os.PathLike[str]],
    data: str | os.PathLike[str] | None = None,
    *,
    task: Any = None,
    device: str | None = None,
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    **overrides: Any,
) -> tuple[list[Any], Any, Any]:
    """Load checkpoints of this package's task, or of fairseq's ``translation``, which this package's task replaces.

    Args:
        data: the binarized data, whose dictionaries, labels and segmentation are used (default: those of training;
            a relative path is looked for in the current folder, then in the folders above the first checkpoint)
        task: the task to use (default: that of the first checkpoint)
        device: default: a GPU if available
        user_dir: folders of plugins to import first
        overrides: new values for options stored in the checkpoints

    Returns:
        the models in evaluation mode on one device, the configuration of the last one, and their task

    Raises:
        SyntaxDataError: a file is missing or not a fairseq checkpoint; its data are missing or differ from the training
            data; a model has another task, or names of a plugin that is not loaded; or the device does not exist
    """
    register(user_dir)
    check_device(device)
    names = [os.fspath(path) for path in paths]
    for path in map(Path, names):
        if not path.is_file():
            raise missing_model(path)
    # BLEU validation belongs to training; its options may name files of the training machine.
    options = {"eval_bleu": False, **overrides, **({} if data is None else {"data": os.fspath(data)})}
    try:
        # The first checkpoint decides the task. A single checkpoint is not read again.
        state = checkpoint_utils.load_checkpoint_to_cpu(names[0], options)
        cfg = state["cfg"]["task"]
        if data is None and (moved := _data_above(cfg.get("data"), names[0])):
            options["data"] = moved
            overwrite_args_by_name(state["cfg"], options)
        name = cfg.get("_name") or cfg.get("task")
        if task is None and not issubclass(tasks.TASK_REGISTRY[name], tasks.TASK_REGISTRY["syntax_translation"]):
            if name != "translation":
                hint = "models of syntax_translation and of translation are loaded"
                raise SyntaxDataError(f"is of fairseq's task {name}", path=names[0], hint=hint)
            task = setup_task(**{**cfg, **options})
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            names, arg_overrides=options, task=task, state=state if len(names) == 1 else None
        )
    except SyntaxDataError:
        raise
    except Exception as error:  # from the unpickler, zip files, fairseq's tasks or PyTorch modules
        raise _explained(names, error) from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    for model in models:
        model.eval()
    return [model.to(device) for model in models], cfg, task


def _data_above(data: str | None, checkpoint: str) -> str | None:
    """Training data (fairseq's option, paths joined by ``:``) in the folders above the checkpoint.

    ``.`` is the checkpoint's own folder, if there are dictionaries. None if the data exist in the current folder, or
    nowhere.
    """
    parts = (data or "").split(":")
    beside = Path(checkpoint).absolute().parent
    if data == "." and any(beside.glob("dict.*.txt")):
        return os.fspath(beside)
    if not data or all(map(os.path.exists, parts)):
        return None
    for folder in Path(checkpoint).absolute().parents:
        places = [folder / part for part in parts]
        if all(place.exists() for place in places):
            return ":".join(map(str, places))
    return None


def setup_task(**values: Any) -> Any:
    """This package's task with those of the values that are options of it."""
    register()
    names = {field.name for field in fields(tasks.TASK_DATACLASS_REGISTRY["syntax_translation"])}
    options = {name: value for name, value in values.items() if name in names}
    return tasks.setup_task(Namespace(task="syntax_translation", **options))


def _explained(paths: Sequence[str], error: Exception) -> Exception:
    """Explain an error of loading as a SyntaxDataError; any other error is returned unchanged."""
    # fairseq's error does not name the file.
    for path in paths:
        try:
            state = checkpoint_utils.load_checkpoint_to_cpu(path)
        except Exception as of_file:
            first = str(of_file).strip().partition("\n")[0].partition(". ")[0]
            return SyntaxDataError(f"not a checkpoint of fairseq: {type(of_file).__name__}: {first}"[:300], path=path)
        if not isinstance(state, dict) or "model" not in state:
            return SyntaxDataError("not a checkpoint of fairseq: there is no model in it", path=path)
    if isinstance(error, FileNotFoundError):
        message = f"a file of its training data is missing: {error.filename or error}"
        return SyntaxDataError(message, path=paths[0], hint="--data names the folder of the binarized data")
    if isinstance(error, RuntimeError) and "size mismatch" in str(error):
        message = f"the model does not fit these data: {str(error).splitlines()[-1].strip()}"[:400]
        return SyntaxDataError(message, path=paths[0], hint="--data is the directory that it was trained on")
    if "infer language pair" in str(error):  # of fairseq's task translation, trained without -s and -t
        message = "does not record its languages, which names of binarized files would tell"
        return SyntaxDataError(message, path=paths[0], hint="--data names the folder of the binarized data")
    return error
