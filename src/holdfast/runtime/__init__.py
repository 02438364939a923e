# SPDX-License-Identifier: Apache-2.0
"""One mechanism for each job of a process: clock, threads, documents, text."""
