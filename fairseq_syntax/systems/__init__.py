"""The syntax systems, one module each. All modules here are imported, so a new system is a new file."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
