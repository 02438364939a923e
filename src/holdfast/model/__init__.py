# SPDX-License-Identifier: Apache-2.0
"""The nouns and their rules: frozen dataclasses, state machines, no input or output."""
