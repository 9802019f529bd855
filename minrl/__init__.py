"""MinRL: reinforcement learning for language models, small enough to read in an evening."""

import sys

if sys.platform == "win32":  # before a module imports what Windows has not, such as fcntl
    sys.exit("error: MinRL needs Linux or macOS, for locks and signals that Windows has not: run it in WSL 2 there")

__version__ = "0.1.0"
