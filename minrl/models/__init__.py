"""The transformers model: loading, adapters, chat template, and the processes that train it."""
