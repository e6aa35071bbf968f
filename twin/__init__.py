"""The pure core: no Kafka, no files, no wall clock, no globals, no threads.

Time comes in with the call, randomness from a seed. Imports `schemas`, never `pipelines`.
"""
