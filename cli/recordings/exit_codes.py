"""How `whippletree replay` ends."""

from __future__ import annotations

from typing import Final

SAME: Final = 0
DRIFT: Final = 1
"""Something is asked for, or ends, otherwise than recorded."""

UNUSABLE: Final = 2
"""Nothing drifts, but something could not be replayed to its end, or the command line makes no sense."""
