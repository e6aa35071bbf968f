"""Engines, simulated: scheduler, KV blocks, step loop (SimPy), compiled kernel, clusters."""
