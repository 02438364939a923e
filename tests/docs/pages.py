# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, their code blocks and their headings."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _tool(name: str) -> Any:
    """Import a program of tools/, which has no suffix."""
    loader = SourceFileLoader(f"tools_{name}", str(ROOT / "tools" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


reference = _tool("reference")
