# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack on one machine, for tests and benchmarks.

`make lab` brings it up, `make lab-down` stops it; both are `python -m lab` with a word.
Programs use `lab.cloud.Lab`. docs/contribute/lab.md says what is in it. Nothing of Holdfast is
imported here: the lab is the outside.
"""
