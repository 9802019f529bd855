"""Talk to a policy: an OpenAI-compatible endpoint on loopback, or a chat in the terminal."""
