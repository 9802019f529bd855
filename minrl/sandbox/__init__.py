"""Programs in walls: of files, processes, network, memory and time."""
