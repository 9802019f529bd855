"""vLLM in this process: the engine, its versions, and the checks of every weight sync."""
