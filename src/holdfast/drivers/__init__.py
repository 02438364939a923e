# SPDX-License-Identifier: Apache-2.0
"""The outside world behind the ports: clouds, fences, memberships, guests, sinks."""
