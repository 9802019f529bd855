"""The operating system: whole files, locks, signals, streams, cores, progress."""
