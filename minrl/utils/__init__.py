"""Command line, console, files, texts, signals, launchers."""
