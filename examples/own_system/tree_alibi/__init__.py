"""Two systems of one's own: linear biases by distance in the tree, and a head trained on grandparents.

``--user-dir`` imports this package; importing a module of it registers the systems in it.
"""

from . import alibi, grandparents  # noqa: TID252  (relative, so that the folder may be renamed)

__version__ = "0.1"
__all__ = ["alibi", "grandparents"]
