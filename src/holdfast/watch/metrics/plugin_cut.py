# SPDX-License-Identifier: Apache-2.0
"""The end of a thread that does not come back by itself."""

import ctypes
import threading


class CutOff(BaseException):
    """Raised in such a thread."""


def interrupt(thread: threading.Thread) -> None:
    """Ends a loop in Python. What waits in the kernel does not see it before it comes back."""
    if thread.ident is not None and thread.is_alive():
        ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(CutOff)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
