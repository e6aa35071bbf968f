"""What finished requests alone tell: likely steps for the cost models, and who is probably in the engine now."""
