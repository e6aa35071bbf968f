"""What the engine runs on: topology as numbers, and presets with the source of each number."""
