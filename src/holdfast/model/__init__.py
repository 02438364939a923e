# SPDX-License-Identifier: Apache-2.0
"""The domain model: frozen dataclasses, their rules and state machines; no input or output."""
