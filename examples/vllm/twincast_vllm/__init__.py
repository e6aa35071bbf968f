"""A step tap for vLLM V1: steps, arrivals, ends and prefill chunks of an engine as Twincast's wire records."""
