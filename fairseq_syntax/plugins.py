"""Plugins: a user's Python packages whose import registers systems, architectures, criteria or tasks.

A folder is loaded if the user names it: by ``--user-dir``, in Python, by a recipe's ``user-dir``, or in the environment
variable :data:`VARIABLE`. An installed package is loaded if it declares the entry point group :data:`GROUP`.
Checkpoints record the plugins of their training, but never cause an import.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError, meant, similar
from fairseq_syntax.runtime.digests import sha256_of
from fairseq_syntax.runtime.files import StrPath

logger = logging.getLogger(__name__)

VARIABLE = "FAIRSEQ_SYNTAX_USER_DIR"  # folders, separated as in PATH
GROUP = "fairseq_syntax.plugins"
RECORD = "plugins"  # in a checkpoint's extra_state
HERE = Path(__file__).resolve().parent

# The values of options that name something registered, by the option's field. A value has commas between the names of
# systems.
NAMED: dict[str, Collection[str]] = {}


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin.

    Attributes:
        name: the name of its module, for a folder the folder's name
        version: its ``__version__``, or that of its distribution; empty if it has neither
        digest: :func:`code_digest` when it was imported
    """

    name: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


# The digests of the loaded plugins' code when they were imported, and the versions of installed ones, by module.
_digests: dict[str, str] = {}
_versions: dict[str, str] = {}


def as_folders(user_dir: StrPath | Sequence[StrPath] | None) -> list[str]:
    """The absolute paths of one folder, or of several."""
    several = () if user_dir is None else [user_dir] if isinstance(user_dir, (str, os.PathLike)) else user_dir
    return [os.path.abspath(folder) for folder in several]


def load_folders(folders: Iterable[StrPath]) -> None:
    """Import folders as fairseq imports that of its ``--user-dir``, whose name must be that of no other module.

    Raises:
        SyntaxDataError: a folder does not exist or is no package, or its import fails
    """
    from fairseq import utils

    for folder in as_folders([*folders]):
        if not os.path.isdir(folder):  # fairseq would also look for it among its own files
            raise SyntaxDataError("no such folder", path=folder, option="--user-dir")
        _check_package(Path(folder))
        before = set(getattr(utils.import_user_module, "memo", ()))
        _note_folder(folder)
        try:
            utils.import_user_module(Namespace(user_dir=folder))
        except Exception as error:
            if folder not in before:  # otherwise fairseq would take it as loaded in the next attempt
                utils.import_user_module.memo.discard(folder)
                _digests.pop(Path(folder).name, None)
            if isinstance(error, SyntaxDataError):
                raise
            raise SyntaxDataError(_failure(error, folder), path=folder, option="--user-dir") from error


def _check_package(folder: Path) -> None:
    """Raise SyntaxDataError for a folder whose import would do nothing, such as the one above a plugin.

    Without an ``__init__.py``, fairseq imports the modules of ``models`` and ``tasks`` alone.
    """
    if not any((folder / name).exists() for name in ("__init__.py", "models", "tasks")):
        packages = sorted(str(file.parent) for file in folder.glob("*/__init__.py"))
        hint = f"give {' or '.join(packages)}" if packages else "one that imports the plugin's modules"
        raise SyntaxDataError("has no __init__.py, so nothing is imported", path=folder, option="--user-dir", hint=hint)


def load_named() -> None:
    """Load the folders of the environment variable. Raises SyntaxDataError as :func:`load_folders`."""
    load_folders(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def load_installed() -> None:
    """Import the installed plugins. One that cannot be imported is left out, with a warning."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            of = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
            logger.warning("the plugin %s%s is left out: %s", entry.name, of, _failure(error, ""))
            continue
        name = entry.module.partition(".")[0]
        _digests.setdefault(name, _digest_of_module(name))
        _versions[name] = entry.dist.version if entry.dist else ""


def note_folders() -> None:
    """Note the code of plugins that fairseq's ``--user-dir`` is importing or has imported."""
    from fairseq import utils

    for folder in sorted(getattr(utils.import_user_module, "memo", ())):
        _note_folder(folder)


def _note_folder(folder: str) -> None:
    if Path(folder).resolve() != HERE and Path(folder).name != HERE.name:
        name = Path(folder).name
        if name not in _digests:
            _digests[name] = code_digest(folder)


def _digest_of_module(name: str) -> str:
    file = getattr(sys.modules[name], "__file__", None)
    return "" if file is None else code_digest(Path(file).parent if Path(file).stem == "__init__" else file)


def _failure(error: Exception, folder: str) -> str:
    """What went wrong in an import, with the last line of the plugin's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if folder and frames else ""
    return f"cannot be imported: {type(error).__name__}: {error}{where}"


def loaded() -> dict[str, Plugin]:
    """The loaded plugins by name."""
    note_folders()
    plugins = {}
    for name, digest in sorted(_digests.items()):
        if name in sys.modules:
            version = getattr(sys.modules[name], "__version__", None) or _versions.get(name, "")
            plugins[name] = Plugin(name, str(version), digest)
    return plugins


def code_digest(path: StrPath) -> str:
    """A digest of the Python code of a module or a package: the SHA-256 of the names and contents of its files.

    Folders whose names begin with a dot or an underscore, and those of tests, do not count.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(_modules(path))
    names = (file.relative_to(path.parent).as_posix() for file in files)
    return sha256_of(f"{name}\0".encode() + file.read_bytes() + b"\0" for name, file in zip(names, files))[:32]


def _modules(folder: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._" and name != "tests"]
        yield from (Path(above) / name for name in files if name.endswith(".py"))


def record() -> list[dict[str, str]]:
    """The loaded plugins as checkpoints record them."""
    return [asdict(plugin) for plugin in loaded().values()]


def check_checkpoint(state: Mapping[str, Any], path: StrPath) -> None:
    """Check that what the options of a checkpoint name is registered.

    A plugin that was loaded in training, and is not loaded now or has other code, is reported, since the model does not
    need all plugins.

    Raises:
        SyntaxDataError: a system, an architecture or a task is not known
    """
    trained = [Plugin(**one) for one in (state.get("extra_state") or {}).get(RECORD, ())]
    here = loaded()
    missing = [plugin for plugin in trained if plugin.name not in here]
    for option, name in unknown_names(_names_in(state)):
        message = f"the model has the {what(option)} {name}, which is not known here"
        if not missing:
            hint = similar(name, NAMED[option]) or "if it is a plugin's, give --user-dir, or in Python user_dir"
            raise SyntaxDataError(message, path=path, hint=hint)
        folders = " ".join(f"--user-dir FOLDER/{plugin.name}" for plugin in missing)
        plugins = f"plugin{'s' * (len(missing) > 1)} {' and '.join(map(str, missing))}"
        hint = f"give {folders}, in Python user_dir, or install {'it' if len(missing) == 1 else 'them'}"
        raise SyntaxDataError(f"{message}: it was trained with the {plugins}", path=path, hint=hint)
    for plugin in missing:
        logger.warning("%s: the plugin %s was loaded in training and is not loaded now", path, plugin)
    for plugin in trained:
        if plugin.name in here and here[plugin.name].digest != plugin.digest:
            now = here[plugin.name]
            logger.warning("%s: trained with other code of the plugin %s than is loaded now (%s)", path, plugin, now)


def _names_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's options name, by the options of :data:`NAMED`."""

    def options(section: str) -> Mapping[str, Any]:
        found = (state.get("cfg") or {}).get(section) or {}
        return vars(found) if isinstance(found, Namespace) else found

    model, task = options("model"), options("task")
    names = {option: model.get(option) for option in NAMED}
    return {**names, "arch": model.get("_name") or model.get("arch"), "task": task.get("_name") or task.get("task")}


def what(option: str) -> str:
    """What the values of an option name."""
    return {"arch": "architecture", "encoder_syntax": "system", "decoder_syntax": "system"}.get(option, option)


def unknown_names(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The option and the name of everything that values of the options in :data:`NAMED` name without being there."""
    for option, known in NAMED.items():
        for name in named_by(options.get(option)):
            if name not in known:
                yield option, name


def named_by(value: Any) -> list[str]:
    """The names in the value of an option, which has commas between several."""
    return [name.strip() for name in str(value or "").split(",") if name.strip()]


def name_hint(name: str, known: Iterable[str]) -> str:
    """The hint for a name that nothing registers: similar ones, and how a user's own is loaded."""
    about = meant(name, known) or ""
    about += "." * bool(about and not about.endswith("?"))
    return f"{about} If it is your own, load its plugin: --user-dir FOLDER, in a recipe user_dir".lstrip()


def check_names(options: Mapping[str, Any]) -> None:
    """Raise SyntaxDataError, with the most similar name, if options name what is not registered."""
    for option, name in unknown_names(options):
        hint = name_hint(name, sorted(NAMED[option]))
        raise SyntaxDataError(f"there is no {what(option)} {name}", option="--" + option.replace("_", "-"), hint=hint)
