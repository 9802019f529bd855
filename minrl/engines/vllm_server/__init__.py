"""Rollouts by `vllm serve` processes on other cards or machines."""
