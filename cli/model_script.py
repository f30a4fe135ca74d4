"""The scripted model answers that `up` and `demo` come with."""

from __future__ import annotations

import json
from pathlib import Path

FILE_NAME = "model-script.json"
