"""Steps of a run repeated: to check what was published, and to see what another setting would have changed."""
